"""``load`` resolves a specification: a kind and a name, your own Python function, or a folder that aureole saved."""

import re
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from aureole.data._addresses import is_remote, local_folder
from aureole.data._image_files import read_square
from aureole.data._table_files import reason
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.encoders import _sentence_transformers
from aureole.encoders._encoder import Encoder, Kind, PosteriorModel, weights_fingerprint
from aureole.errors import (
    AureoleError,
    EncoderError,
    MissingInputError,
    MissingPackageError,
)
from aureole.models import CifarResNet, PosteriorEncoder
from aureole.models._saving import WEIGHTS, format_of
from aureole.records import file_hash

# how the name of each kind is written, its function of (name, kind), and what to install
_KINDS = {
    "sentence-transformers": ("NAME_OR_FOLDER", "_sentence_transformers.load", "'aureole[text]'"),
    "transformers": ("NAME_OR_FOLDER", "_transformers.load", "transformers pillow"),
    "timm": ("NAME_OR_FOLDER", "_transformers.load_timm", "timm pillow"),
    "openai": ("URL#MODEL", "_openai.load", "openai"),
    "python": ("MODULE:FUNCTION", "_resolver.load_python", "'aureole[all]'"),
}
_SIDE = 32  # pixels: what the image networks of ``aureole.models`` are trained on


def load(spec: Any, kind: Kind | None = None) -> Encoder:
    """The encoder of a specification, ``KIND:NAME``, of a folder with a saved model, or of a Python object.

    A specification can run code and reach other hosts: never take one from data.

    Parameters
    ----------
    spec
        ``sentence-transformers:NAME_OR_FOLDER``, ``transformers:NAME_OR_FOLDER``, ``timm:NAME_OR_FOLDER``,
        ``openai:URL#MODEL``, ``python:MODULE:FUNCTION`` (or ``python:FILE.py:FUNCTION``), the folder of
        a saved ``PosteriorEncoder`` or sentence-transformers pipeline, or an object with ``encode(inputs)``, such as
        a ``SentenceTransformer``.
    kind
        "text" or "image"; required for Python functions without an attribute ``kind``.

    Examples
    --------
    >>> load("resnet50")
    Traceback (most recent call last):
    aureole.errors.EncoderError: 'resnet50' is not an encoder: it is neither a folder nor KIND:NAME. Kinds are
    sentence-transformers:NAME_OR_FOLDER, transformers:NAME_OR_FOLDER, timm:NAME_OR_FOLDER, openai:URL#MODEL,
    python:MODULE:FUNCTION.
    """
    if isinstance(spec, Encoder):
        encoder = spec
    elif not isinstance(spec, str | Path):
        encoder = _wrap(spec, kind, type(spec).__name__)
    else:
        encoder = _load_named(str(spec), kind)
    if kind is not None and encoder.kind != kind:
        raise EncoderError(f"{encoder} takes {encoder.kind}s, not {kind}s.")
    return encoder


def is_spec(text: str) -> bool:
    """Whether a text names one of the kinds, such as ``timm:resnet50``."""
    return text.partition(":")[0] in _KINDS and ":" in text


def absolute_spec(spec: str) -> str:
    """A specification or folder with an absolute path, if it names an existing file or folder.

    Examples
    --------
    >>> absolute_spec("timm:resnet50"), absolute_spec("timm:.") == f"timm:{Path().absolute()}"
    ('timm:resnet50', True)
    """
    scheme, name = spec.split(":", 1) if is_spec(spec) else ("", spec)
    place, _, function = name.rpartition(":") if scheme == "python" else (name, "", "")
    if scheme == "openai" or not Path(place).exists() or (function and not place.endswith(".py")):
        return spec
    return ":".join(part for part in (scheme, str(Path(place).absolute()), function) if part)


def _load_named(spec: str, kind: Kind | None) -> Encoder:
    scheme, _, name = spec.partition(":")
    if not is_spec(spec):
        if is_remote(spec):
            return _load_saved(local_folder(spec))
        if Path(spec).is_dir():
            return _load_saved(Path(spec))
        if "/" in spec and ":" not in spec:
            raise MissingInputError(
                f"{spec[:200]} does not exist or is not a folder. Check the path."
            )
        kinds = ", ".join(f"{kind}:{name}" for kind, (name, *_) in _KINDS.items())
        raise EncoderError(
            f"{spec[:200]!r} is not an encoder: it is neither a folder nor KIND:NAME. Kinds are {kinds}."
        )
    shown = re.sub(r"//[^/@]*@", "//", spec)[:200]  # without a password
    if not name:
        raise EncoderError(f"{shown!r} names no model: write {scheme}:{_KINDS[scheme][0]}.")
    module, function = _KINDS[scheme][1].split(".")
    try:
        return getattr(import_module(f"aureole.encoders.{module}"), function)(name, kind)
    except AureoleError:
        raise
    except ImportError as error:
        raise MissingPackageError(
            f"{shown} needs a package that cannot be imported ({reason(error)}): "
            f"pip install {_KINDS[scheme][2]}."
        ) from error
    except Exception as error:  # libraries raise almost anything for a name they do not know
        raise EncoderError(f"{shown} cannot be loaded: {reason(error)} Check the name.") from error


def _load_saved(folder: Path) -> Encoder:
    """The model that aureole or sentence-transformers saved in a folder."""
    if (folder / "modules.json").is_file():
        return _sentence_transformers.load(str(folder))
    if not (folder / WEIGHTS).is_file():
        raise MissingInputError(
            f"{folder / WEIGHTS} is missing: {folder} holds no saved model. Save one with `aureole train`, or name the "
            f"kind of model, such as sentence-transformers:{folder} or timm:{folder}."
        )
    if (format_of(folder) or "").startswith("aureole-frozen-head"):
        raise EncoderError(
            f"{folder} holds a head, not an encoder: pass it with --head, and the encoder whose vectors it takes "
            "with --encoder."
        )
    return SavedImageEncoder(folder)


class SavedImageEncoder(PosteriorModel):
    """A saved ``PosteriorEncoder`` of pictures: their central squares, at the resolution of its network."""

    kind = "image"
    resolution = _SIDE

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._encoder = PosteriorEncoder.load(folder)
        if not isinstance(self._encoder.backbone, CifarResNet):
            raise EncoderError(
                f"the encoder in {folder} has the backbone {type(self._encoder.backbone).__name__}, which does not "
                "take pictures. Write its vectors to a table and fit a head on them."
            )
        kappa_pos = self._encoder.card.kappa_pos
        self.kappa_pos = None if kappa_pos is None else float(kappa_pos)
        self.weights = self.fingerprint = file_hash(folder / WEIGHTS)
        self.dim = int(
            self.posteriors([torch.zeros(3, _SIDE, _SIDE, dtype=torch.uint8)]).mu.shape[-1]
        )

    def prepare(self, raw: Any) -> Tensor:
        """The central square of a picture, uint8 [3, 32, 32]."""
        return read_square(raw, _SIDE)

    @torch.inference_mode()
    def posteriors(self, prepared: Sequence[Any]) -> VonMisesFisher | MixtureVMF:
        """The posteriors of squares."""
        return self._encoder(torch.stack(list(prepared)))


def load_python(name: str, kind: Kind | None = None) -> Encoder:
    """The encoder of a function or object in a module, which is imported, or in a file that ends in ``.py``.

    Modules are found on the import path and in the working directory.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise EncoderError(
            f"write python:MODULE:FUNCTION or python:FILE.py:FUNCTION, not python:{name}."
        )
    module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    try:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise EncoderError(f"{place} has no {attribute!r}. Check the name.") from error
    return _wrap(found, kind, f"python:{name}")


def _wrap(found: Any, kind: Kind | None, name: str) -> Encoder:
    """The encoder of a function of a list of inputs, of an object with ``encode``, or of a class of such objects."""
    if isinstance(found, type):
        found = found()
    if isinstance(found, Encoder):
        return found
    function = getattr(found, "encode", None) or (found if callable(found) else None)
    if function is None:
        raise EncoderError(
            f"{name} is a {type(found).__name__}: neither a function nor an object with encode."
        )
    own = getattr(found, "kind", None) or kind
    if own is None and type(found).__name__ == "SentenceTransformer":
        own = "text"
    if own not in ("text", "image"):
        raise EncoderError(
            f"{name} does not say what it takes: set its attribute kind to 'text' or 'image', or name the column "
            "with --text-column or --image-column (aureole serve: add --modality)."
        )
    return FunctionEncoder(found, function, own, name)


class FunctionEncoder(Encoder):
    """A function ``f(inputs) -> array [n, d]``; pictures are passed as Pillow images in RGB.

    The fingerprint is the attribute ``fingerprint`` of the function or object, if it has one; else a hash of its
    weights, if it is a torch module; else a hash of its name, without the folder of its file, and dimension.
    """

    def __init__(self, found: Any, function: Callable[..., Any], kind: Kind, name: str) -> None:
        self.name, self.kind, self._function = name, kind, function
        self.resolution = getattr(found, "resolution", None)
        self.dim = self._probe()
        own = getattr(found, "fingerprint", None)
        if isinstance(own, str):
            self.fingerprint = sha256(f"python {own} {self.dim}".encode()).hexdigest()
        elif isinstance(found, nn.Module) and found.state_dict():  # empty with an ONNX backend
            self.fingerprint = weights_fingerprint(found, "python")
        else:
            short = Path(name.removeprefix("python:")).name  # the file may be moved
            self.fingerprint = sha256(f"python {short} {self.dim}".encode()).hexdigest()

    def _vectors(self, prepared: list[Any]) -> Any:
        try:
            return self._function(prepared)
        except Exception as error:
            raise EncoderError(
                f"{self} failed on {len(prepared)} {self.kind}s: {type(error).__name__}: {reason(error)}"
            ) from error


def _from_module(name: str) -> Any:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return import_module(name)
    except Exception as error:
        raise EncoderError(
            f"the module {name!r} cannot be imported: {type(error).__name__}: {reason(error)} Check the name."
        ) from error
    finally:
        if added:
            sys.path.remove(here)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist or is not a file. Check the path.")
    module = ModuleType(f"_aureole_encoder_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look it up
    try:
        # an import would leave a folder __pycache__ next to the file
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except Exception as error:
        raise EncoderError(
            f"{path} cannot be run: {type(error).__name__}: {reason(error)} Fix the file."
        ) from error
    return module
