"""Encoders of other libraries by name: texts or pictures to vectors.

``load`` resolves a specification such as ``sentence-transformers:all-MiniLM-L6-v2`` or ``timm:resnet50``. Some kinds
run code (``python:``) or reach other hosts (``openai:``), so take a specification only from the operator, never
from a file, a gallery or a request. Heads and galleries store a fingerprint, which is compared and never
loaded.
"""

from aureole.encoders._bulk import ahead, encode_all
from aureole.encoders._encoder import Encoder, Kind, PosteriorModel, check_text
from aureole.encoders._resolver import absolute_spec, is_spec, load
from aureole.encoders._sentence_transformers import packaged_folder

__all__ = ["Encoder", "load"]
