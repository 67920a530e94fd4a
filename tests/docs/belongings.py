"""What a reader of the pages has: the files that their commands name, small, in one folder."""

import shutil
from pathlib import Path

import numpy as np
import torch

import aureole as au
from aureole.caps import CredibleIndex
from aureole.data import write_columns
from aureole.data._image_files import read_picture, write_picture
from aureole.embed import load_embedder
from aureole.engines import Origin
from aureole.models import Card, CifarResNet
from aureole.models._saving import MINILM_CAPTIONS, WEIGHTS
from aureole.records import file_hash
from aureole.training import minilm
from tests.made_pictures import make_pictures

__all__ = ["make_belongings"]

_COLOURS = ("red", "blue", "green", "black", "white")
_KINDS = ("shoes", "boots", "hats", "shirts", "coats", "bags")
_WORDS = (
    "{colour} {kind}",
    "a pair of {colour} {kind} in a shop",
    "somebody wears {colour} {kind}",
)


def make_belongings(folder: Path) -> None:
    """All of them."""
    folder.mkdir(parents=True, exist_ok=True)
    things = [(colour, kind) for colour in _COLOURS for kind in _KINDS]
    table = _items(things)
    for name in ("train", "all", "test", "items", "captions", "queries", "vectors"):
        write_columns(folder / f"{name}.parquet", table)
    new = table["id"].astype(str)
    write_columns(
        folder / "new.parquet",
        table | {"id": np.array([f"new {one}" for one in new], dtype=object)},
    )
    write_columns(folder / "captions.csv", {name: table[name] for name in ("photo", "caption")})
    np.save(folder / "vectors.npy", table["v"])
    lines = "".join(f"{one}\n" for one in table["photo"])
    (folder / "labels.csv").write_text(f"label\n{lines}")
    clicks = {"query": table["id"][::3], "item": table["id"][1::3]}
    write_columns(folder / "clicks.parquet", clicks)
    (folder / "keys.txt").write_text("search jc3TqU7yMv0pXw2R\n")
    _labelled_pairs(folder, table["id"])
    shutil.copytree(MINILM_CAPTIONS, folder / "head")
    (folder / "sentences.txt").write_text("".join(f"{one}\n" for one in table["caption"]))
    write_columns(folder / "ids.csv", {"id": table["id"][:5]})
    _questions(folder, things)
    _pictures(folder)
    _galleries(folder, table)


def _galleries(folder: Path, table: dict[str, np.ndarray]) -> None:
    """Galleries of the same items; the vectors of two have some noise, as another encoder's would."""
    head = au.FrozenHead.load(folder / "head")
    noise = np.random.default_rng(0).normal(0, 0.02, table["v"].shape).astype(np.float32)
    payload = {"label": list(table["colour"]), "text": list(table["caption"])}
    for name in ("old", "new", "other", "resnet20", "resnet56", "captions"):
        vectors = table["v"] + noise if name in ("new", "resnet56") else table["v"]
        posterior = head.predict(torch.from_numpy(vectors))
        where = folder / f"{name}.lance"
        with CredibleIndex.create(where, posterior, list(table["id"]), payload) as index:
            weights = file_hash(folder / "head" / WEIGHTS)
            index.origin = Origin(head.kappa_pos_, weights, head.fingerprint_)


def _labelled_pairs(folder: Path, ids: np.ndarray) -> None:
    """Pairs of descriptions of one thing, which count as copies, and of different things, which do not."""
    first = np.concatenate([ids[::3], ids[::3]])
    second = np.concatenate([ids[1::3], np.roll(ids[1::3], 1)])
    same = np.repeat([1, 0], len(ids) // 3)
    write_columns(folder / "labelled.csv", {"first": first, "second": second, "same": same})


def _questions(folder: Path, things: list[tuple[str, str]]) -> None:
    """Questions with the answers that match them: as pairs of texts, and as ids of a table of answers."""
    answers = [
        f"{words.format(colour=c, kind=k)} of shop {i}"
        for i, words in enumerate(_WORDS)
        for c, k in things
    ]
    asked = [f"{words} {c} {k}?" for words in ("where are", "who sells") for c, k in things]
    matches = [
        [row + i * len(things) for i in range(3)] for _ in range(2) for row in range(len(things))
    ]
    write_columns(
        folder / "answers.csv", {"id": np.arange(len(answers)) + 7, "text": np.array(answers)}
    )
    joined = [" ".join(str(row + 7) for row in group) for group in matches]
    write_columns(
        folder / "questions.csv", {"question": np.array(asked), "answers": np.array(joined)}
    )
    pairs = [
        (one, answers[row]) for one, group in zip(asked, matches, strict=True) for row in group
    ]
    questions, texts = zip(*pairs, strict=True)
    write_columns(
        folder / "pairs.csv", {"question": np.array(questions), "answer": np.array(texts)}
    )


def _items(things: list[tuple[str, str]]) -> dict[str, np.ndarray]:
    """Three descriptions of each thing, with their vectors and what a shop says of them."""
    texts = [words.format(colour=c, kind=k) for c, k in things for words in _WORDS]
    groups = [f"{c} {k}" for c, k in things for _ in _WORDS]
    count = len(texts)

    def column(values):
        return np.array(list(values), dtype=object)

    return {
        "v": minilm().encode(texts, show_progress_bar=False).astype(np.float32),
        "id": column(f"shoe {i}" for i in range(count)),
        "photo": column(groups),
        "product": column(groups),
        "caption": column(texts),
        "title": column(texts),
        "colour": column(c for c, _ in things for _ in _WORDS),
        "shop": column(f"shop {i % 4}" for i in range(count)),
        "price": np.arange(count) % 30,
    }


def _pictures(folder: Path) -> None:
    """A folder of photos, an encoder, and a gallery of pictures by it."""
    names = make_pictures(folder / "photos", 80)
    torch.manual_seed(0)
    card = Card(name="Toy", kappa_pos=16.0)
    for name in ("encoder", "encoder-2"):
        au.PosteriorEncoder(CifarResNet(8), au.models.KappaFromNorm(64, 8), card=card).save(
            folder / name
        )
    pictures = [read_picture(folder / "photos" / name) for name in names]
    ids = [f"picture-{i}" for i in range(len(pictures))]
    for one, picture in zip(ids, pictures, strict=True):
        write_picture(picture, folder / "pictures" / f"{one}.png")
    for name in ("shoe.png", "shoe.jpg"):
        write_picture(pictures[0], folder / name)
    embedder = load_embedder(folder / "encoder")
    payload = {"label": [_KINDS[i % 3] for i in range(len(ids))], "price": list(range(len(ids)))}
    posterior = embedder([folder / "photos" / name for name in names])
    with CredibleIndex.create(folder / "pictures.lance", posterior, ids, payload) as index:
        index.origin = Origin(16.0, embedder.weights)
