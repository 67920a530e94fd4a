"""The search of a quickstart: one picture, sharp and blurred, over a gallery of pictures that training never saw."""

import math
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from aureole.data import DrawnShapes, blur_pictures, write_picture
from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError
from aureole.explorer._quickstart import QuickstartSetting, embed
from aureole.explorer._two_caps import CapSearch
from aureole.models import WEIGHTS, PosteriorEncoder
from aureole.records import file_hash
from aureole.retrieval import CredibleIndex, Origin

GALLERIES = ("gallery.lance", "gallery.faiss")  # the ending is the engine's module
_SHAPE = "star"  # the query's, set before any search was seen


def item_name(number: int) -> str:
    """The id of a picture of the gallery, and the name of its file."""
    return f"shape-{number:03d}"


def write_gallery(
    out: Path,
    encoder: Path,
    shapes: DrawnShapes,
    posterior: VonMisesFisher,
    setting: QuickstartSetting,
) -> Path:
    """Write the first held-out pictures to ``out/pictures`` and an index of their posteriors, and return its path.

    The engine is Lance, or FAISS where Lance is not installed. What an interrupted run left there is replaced.
    """
    found = next((name for name in GALLERIES if find_spec(Path(name).suffix[1:])), None)
    if found is None:
        raise AureoleError("a gallery needs Lance or FAISS: pip install 'aureole[retrieval]'.")
    for name in GALLERIES:
        _remove(out / name)
    count = min(setting.gallery, len(shapes))
    for number in range(count):
        write_picture(shapes.pictures[number], out / "pictures" / f"{item_name(number)}.png")
    payload = {
        "label": [shapes.names[label] for label in shapes.labels[:count]],
        "entropy": shapes.entropy[:count].tolist(),
    }
    rows = VonMisesFisher(posterior.mu[:count], posterior.kappa[:count], validate_args=False)
    names = [item_name(number) for number in range(count)]
    with CredibleIndex.create(out / found, rows, names, payload) as index:
        index.origin = Origin(float(setting.kappa_pos), file_hash(encoder / WEIGHTS))
    return out / found


def choose_query(shapes: DrawnShapes, kappa: Tensor, setting: QuickstartSetting) -> int:
    """The number of the clear star, outside of the gallery, whose kappa is the median of all of these.

    A rule, so that the example is a typical one and not the best.
    """
    star = shapes.names.index(_SHAPE)
    wanted = (shapes.kinds == 0) & (shapes.probabilities.argmax(-1) == star)
    wanted[: setting.gallery] = False
    found = wanted.nonzero().squeeze(-1)
    if not len(found):
        raise InvalidInputError(
            f"there is no clear {_SHAPE} among the {len(shapes)} pictures held out and outside of the gallery's "
            f"{setting.gallery}: hold out more."
        )
    return int(found[kappa[found].argsort()[len(found) // 2]])


def two_searches(
    gallery: Path,
    encoder: PosteriorEncoder,
    shapes: DrawnShapes,
    query: int,
    setting: QuickstartSetting,
) -> tuple[CapSearch, CapSearch]:
    """The search for a picture as it is, and for the same picture blurred, each with all that its cap holds."""
    sharp = shapes.pictures[query]
    blurred = blur_pictures(sharp[None], torch.tensor([setting.blur]))[0]
    found = []
    with CredibleIndex.open(gallery) as index:
        count = index.count()
        names = [item_name(number) for number in range(count)]
        mu = index.fetch(names)[0].mu.double()
        for title, picture in (("sharp", sharp), ("blurred", blurred)):
            posterior = embed(encoder, picture[None])
            found_hits = index.search(posterior, setting.mass)
            assert isinstance(found_hits, list)
            (hits,) = found_hits
            cosines = (mu @ posterior.mu[0].double()).clamp(-1, 1)
            found.append(
                CapSearch(
                    title=title,
                    picture=picture,
                    kappa=float(posterior.kappa),
                    degrees=math.degrees(math.acos(float(hits.threshold[0].clamp(-1, 1)))),
                    members=tuple(names.index(name) for name in hits.ids),
                    angles=tuple(torch.rad2deg(torch.acos(cosines)).tolist()),
                )
            )
    return found[0], found[1]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
