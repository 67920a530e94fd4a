"""Encoders of other libraries by name: texts or pictures to vectors.

``load`` resolves a specification such as ``sentence-transformers:all-MiniLM-L6-v2`` or ``timm:resnet50``. Some kinds
run code (``python:``) or reach other hosts (``openai:``), so take a specification only from the operator, never
from a file, a gallery or a request. Heads and galleries store a fingerprint, which is compared and never
loaded.
"""

from aureole.encoders import _encoder as _encoder, _resolver as _resolver
from aureole.encoders._encoder import Encoder
from aureole.encoders._resolver import load

__all__ = ["Encoder", "load"]
