"""``python:MODULE:FUNCTION`` and Python objects: your own function from inputs to vectors."""

import sys
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from aureole.encoders._encoder import Encoder, Kind, first_line, weights_fingerprint
from aureole.errors import EncoderError, MissingInputError


def load(name: str, kind: Kind | None = None) -> Encoder:
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
    return wrap(found, kind, f"python:{name}")


def wrap(found: Any, kind: Kind | None, name: str) -> Encoder:
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
                f"{self} failed on {len(prepared)} {self.kind}s: {type(error).__name__}: {first_line(error)}"
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
            f"the module {name!r} cannot be imported: {type(error).__name__}: {first_line(error)} Check the name."
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
            f"{path} cannot be run: {type(error).__name__}: {first_line(error)} Fix the file."
        ) from error
    return module
