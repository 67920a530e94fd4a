"""The answers of ``inspect_gallery`` as one file next to the gallery, written atomically."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from aureole._io import atomic_write
from aureole.engines._addresses import is_local
from aureole.engines._schema import pack_strings, unpack_strings
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.explorer._questions import CapShares, Questions

_FORMAT = "aureole-questions-1"
_SUFFIX = ".questions.safetensors"
_LARGEST = 64 * 2**20  # characters of JSON


def questions_path(gallery: str) -> Path:
    """The file next to a gallery: ``gallery.lance.questions.safetensors``; raise for a gallery that is not local.

    Examples
    --------
    >>> questions_path("shop/gallery.lance/").name
    'gallery.lance.questions.safetensors'
    """
    if not is_local(gallery):
        raise InvalidInputError(
            "the gallery is not local: choose the file for its answers (--out, and --questions to serve it)."
        )
    path = Path(gallery)
    return path.with_name(path.name + _SUFFIX)


def save_questions(questions: Questions, path: Path) -> Path:
    """Write the answers atomically, and return the path."""
    text, ends = pack_strings([json.dumps(name) for name in questions.ids])
    arrays: dict[str, np.ndarray] = {
        "ids": text,
        "ends": ends,
        "kappa": questions.kappa.astype(np.float32),
        "angle": questions.angle,
        "p_value": questions.p_value,
    }
    shares = questions.shares
    if shares is not None:
        assert questions.label is not None
        assert questions.suspicion is not None
        arrays |= {"label": questions.label, "suspicion": questions.suspicion}
        arrays |= {name: getattr(shares, name) for name in CapShares.__dataclass_fields__}
    about = {
        "format": _FORMAT,
        "version": questions.version,
        "classes": questions.classes,
        "far": repr(questions.far),
        "settings": questions.settings,
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return atomic_write(path, save(arrays, {"aureole": json.dumps(about)}))


def load_questions(path: Path) -> Questions:
    """The answers in a file of ``save_questions``; raise if it is not such a file.

    Examples
    --------
    >>> import tempfile
    >>> from aureole.explorer._questions import outlier_p_values
    >>> angle = np.array([0.1, 0.4])
    >>> found = Questions(["a", "b"], np.ones(2), None, None, None, None, angle, outlier_p_values(angle), 1.0)
    >>> load_questions(save_questions(found, Path(tempfile.mkdtemp()) / "questions.safetensors"))
    Questions(2 items, {'outliers': 0})
    """
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist. Write it with: aureole inspect GALLERY.")
    try:
        with safe_open(path, framework="np") as file:
            about = json.loads((file.metadata() or {}).get("aureole", "")[:_LARGEST])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["format"] != _FORMAT:
            raise ValueError(f"the format is {str(about['format'])[:40]!r}")
        return _questions(about, arrays)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedGalleryError(
            f"{path} does not hold answers of this version of aureole ({error}). Run aureole inspect again."
        ) from error


def _questions(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Questions:
    """The answers; raise ValueError if arrays do not fit each other."""
    ids = [json.loads(text) for text in unpack_strings(arrays["ids"], arrays["ends"])]
    n = len(ids)
    shares = None
    if "own" in arrays:
        shares = CapShares(**{name: arrays[name] for name in CapShares.__dataclass_fields__})
    classes = about["classes"]
    by_item = ["kappa", "angle", "p_value"]
    by_item += ["label", "suspicion", "own", "other", "other_share", "weight"] if shares else []
    if any(len(arrays[name]) != n for name in by_item):
        raise ValueError("columns have different lengths")
    if shares is not None:
        codes = [arrays["label"], shares.other[shares.other >= 0], shares.pairs.ravel()]
        if any((each < 0).any() or (each >= len(classes)).any() for each in codes):
            raise ValueError("a class does not exist")
    return Questions(
        ids,
        arrays["kappa"],
        classes if shares else None,
        arrays.get("label"),
        shares,
        arrays.get("suspicion"),
        arrays["angle"],
        arrays["p_value"],
        float(about["far"]),
        str(about["version"]),
        dict(about["settings"]),
    )
