"""Five tasks in the explorer, done by a scripted visit in a browser: clicks, results and screenshots.

``python -m benchmarks.explorer_tasks --work DIR [--pictures DIR] [--out results/serve/tasks.json] [--images]``

1. Find the 20 most suspicious labels of CIFAR-10H, and compare them with the votes of the annotators.
2. Export the suspicious items as a queue to relabel.
3. Find near duplicates: 400 exact and edited copies planted among 5,000 captions of Multi30k.
4. Compare two encoders, ResNet-20 and ResNet-56.
5. Find what is novel: ten questions of BoolQ planted among the captions.

The galleries are built and inspected with the commands of the docs, in ``DIR``; existing ones are left unchanged. The
images are those of ``benchmarks.explorer_questions``: half of CIFAR-10's test images, with heads fitted on the labels
of the other half, and a label is wrong if most of about 50 people chose another class. Each visit starts on the first
page of the service with an empty cache. A click on a button or a link and a drag of the mouse count as one click each.
The pictures of the map in docs/explorer.md, and of both maps in docs/questions.md, are taken of the same images.
"""

import argparse
import csv
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole.data import write_picture
from aureole.distributions import VonMisesFisher
from aureole.explorer import load_questions
from aureole.records import Record, file_hash, write_record
from aureole.retrieval import CredibleIndex, Origin
from aureole.scale import load_embedder
from aureole_paper.cifar import CLASSES, Cifar10H, load_cifar10h
from aureole_paper.cifar10h import data_hashes
from aureole_paper.data_folder import data_folder
from aureole_paper.text_data import read_json_lines
from benchmarks.explorer_galleries import HEAD, MINILM, joined
from benchmarks.explorer_questions import FIRST, NAMES, features, posteriors
from benchmarks.explorer_visit import Camera, Visit, browser, serving
from benchmarks.near_duplicates import EACH, KINDS, SHORTEST, captions, changed

HALF = 1  # the half of the images that explorer_questions reports on
# questions among the captions: fewer than the rank of the neighbour that makes an outlier
FOREIGN = 10
_BATCH = 500
_MOST = 492  # entries of a question that the page shows


class TaskVisit(Visit):
    """A visit that counts its clicks."""

    clicks = 0

    def click(self, place: Any) -> None:
        """Click on a button or a link."""
        place.click()
        self.clicks += 1

    def link(self, name: str) -> None:
        """Click on a link of the header."""
        self.click(self.page.get_by_role("link", name=name, exact=True))

    def question(self, name: str, least: int) -> Any:
        """The card of a question under Questions, with at least so many entries, or all."""
        self.link("Questions")
        card = self.page.get_by_role("article", name=name)
        card.locator(".tile, .empty").first.wait_for()
        more = card.get_by_role("button", name="Show more")
        shown = card.locator("ul.pairs > li, ul.grid > li")
        while shown.count() < least and more.count():
            before = shown.count()
            self.click(more)
            shown.nth(before).wait_for()
        return card

    def drag(self, box: dict[str, float], *corners: tuple[float, float]) -> None:
        """Drag through points in fractions of a box."""
        mouse = self.page.mouse
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
        mouse.move(*places[0])
        mouse.down()
        for place in places[1:]:
            mouse.move(*place, steps=6)
        mouse.up()
        self.clicks += 1

    def save_dialog(self, text: str) -> None:
        """Fill the open dialog, and save it."""
        self.page.locator("dialog #tag-value").fill(text)
        self.click(self.page.locator("dialog button[type=submit]"))

    def show(self, place: Any) -> None:
        """Scroll a part of the page to the top of the screen."""
        place.evaluate("part => part.scrollIntoView()")


def ids_of(tiles: Any) -> list[str]:
    """The ids of items on the page."""
    links = tiles.evaluate_all("all => all.map(each => each.getAttribute('href'))")
    return [link.removeprefix("#/item/") for link in links]


class Votes:
    """The votes for the images of the gallery, by id."""

    def __init__(self, data: Cifar10H, rows: torch.Tensor) -> None:
        self.wrong, self.share, self.text = {}, {}, {}
        for row in rows.tolist():
            name, counts = f"test-{row:05d}", data.counts[row]
            label = int(data.labels[row])
            order = [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k]]
            self.wrong[name] = bool(counts.argmax() != label)
            self.share[name] = float(counts[label] / counts.sum())
            self.text[name] = ", ".join(f"{int(counts[k])} {CLASSES[k]}" for k in order)


def image_galleries(work: Path, folder: Path) -> Votes:
    """resnet20.lance and resnet56.lance, inspected, with labels and votes, and the pictures."""
    data, given = load_cifar10h(folder), None
    for name in NAMES:
        where = work / f"{name}.lance"
        if where.exists():
            continue
        given = features(work, folder) if given is None else given
        found = posteriors(work, given, name, HALF)
        votes = Votes(data, found["rows"])
        ids = list(votes.text)
        labels = [CLASSES[code] for code in data.labels[found["rows"]].tolist()]
        posterior = VonMisesFisher(found["mu"], found["kappa"], validate_args=False)
        payload = {
            "label": labels,
            "votes": list(votes.text.values()),
            "agree": [round(share, 3) for share in votes.share.values()],
        }
        index = CredibleIndex.create(where, posterior, ids, payload)
        index.origin = Origin(kappa_pos=float(found["kpos"]))
        if name == NAMES[0]:
            command("inspect", where, "--label-column", "label")
        command("index", "map", where)
    rows = posteriors(work, {}, NAMES[0], HALF)["rows"]
    for row in rows.tolist():
        picture = work / "pictures" / f"test-{row:05d}.png"
        if not picture.exists():
            write_picture(data.images[row], picture)
    return Votes(data, rows)


def caption_gallery(work: Path, folder: Path) -> dict[str, Any]:
    """planted.lance, inspected: captions, planted copies and foreign questions. Which ones were planted."""
    where = work / "planted.lance"
    texts, hashes = captions(folder)
    rng = np.random.default_rng(0)
    pool = [word for text in texts for word in text.split() if word.isalpha()]
    long = [row for row, text in enumerate(texts) if len(text.split()) >= SHORTEST]
    originals = rng.choice(long, EACH * len(KINDS), replace=False).tolist()
    kinds = np.repeat(np.arange(len(KINDS)), EACH).tolist()
    copies = [changed(texts[r], kind, pool, rng) for r, kind in zip(originals, kinds, strict=True)]
    source = folder / "qa" / "boolq_questions.jsonl.gz"
    asked = [f"{row['question'].capitalize()}?" for row in read_json_lines(source)]
    foreign = [asked[row] for row in rng.choice(len(asked), FOREIGN, replace=False)]
    everything = [*texts, *copies, *foreign]
    order = rng.permutation(len(everything))  # the ids reveal nothing
    ids = np.empty(len(everything), object)
    ids[order] = [f"text-{i:04d}" for i in range(len(everything))]
    shuffled = [everything[i] for i in order]
    names = [f"text-{i:04d}" for i in range(len(shuffled))]
    if not where.exists():
        embedder = load_embedder(MINILM, head=HEAD)
        parts = [shuffled[i : i + _BATCH] for i in range(0, len(shuffled), _BATCH)]
        posterior = joined([embedder(part) for part in parts])
        index = CredibleIndex.create(where, posterior, names, {"text": shuffled})
        index.origin = Origin(embedder.kappa_pos, embedder.weights, embedder.fingerprint)
    if not where.with_name("planted.lance.questions.safetensors").exists():
        command("inspect", where, "--text-column", "text", "--encoder", MINILM, "--head", HEAD)
    pairs = [[ids[row], ids[len(texts) + i], kinds[i]] for i, row in enumerate(originals)]
    hashes[source.name] = file_hash(source)
    return {
        "pairs": pairs,
        "foreign": ids[-FOREIGN:].tolist(),
        "texts": dict(zip(names, shuffled, strict=True)),
        "hashes": hashes,
    }


def command(*arguments: Any) -> None:
    """Run ``aureole`` with these arguments."""
    line = [sys.executable, "-m", "aureole", *map(str, arguments)]
    print("aureole", *arguments[:2], flush=True)
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)


def suspicious(visit: TaskVisit, camera: Camera, votes: Votes) -> dict[str, Any]:
    """The first 20 suspicious labels, and the votes for them."""
    card = visit.question("Suspicious labels", FIRST)
    found = ids_of(card.locator(".tile"))[:FIRST]
    visit.show(card)
    camera.take(visit, "task-labels")
    visit.click(card.get_by_role("link", name="on the map"))
    visit.page.locator(".linked .page[data-count]").wait_for()
    visit.click(visit.page.get_by_text("Table", exact=True))
    rows = visit.page.locator(".linked tbody tr")
    rows.first.wait_for()
    visit.click(visit.page.get_by_role("button", name="agree", exact=True))
    visit.page.locator("th[aria-sort=ascending]", has_text="agree").wait_for()
    first = rows.first.inner_text()
    name = ids_of(rows.first.locator("th a"))[0]
    if votes.text[name] not in first:
        raise AssertionError(f"the table shows {first!r} for {name}, not {votes.text[name]!r}")
    visit.show(visit.page.locator(".linked"))
    camera.take(visit, "task-votes")
    wrong = [votes.wrong[name] for name in found]
    chance = float(np.mean(list(votes.wrong.values())))
    return {
        "wrong among the first 20": sum(wrong),
        "precision at 20": float(np.mean(wrong)),
        "chance": chance,
        "times chance": float(np.mean(wrong)) / chance,
        "votes for the label": float(np.mean([votes.share[name] for name in found])),
        "votes for the label, all": float(np.mean(list(votes.share.values()))),
        "at least a fifth of the votes against": sum(votes.share[name] <= 0.8 for name in found),
        "at least a fifth of the votes against, chance": float(
            np.mean([share <= 0.8 for share in votes.share.values()])
        ),
    }


def relabel_queue(visit: TaskVisit, camera: Camera, votes: Votes, work: Path) -> dict[str, Any]:
    """The suspicious items, marked and downloaded."""
    card = visit.question("Suspicious labels", 1)
    visit.click(card.get_by_role("link", name="on the map"))
    panel = visit.page.get_by_role("region", name="Tag the selection")
    visit.click(panel.get_by_role("button", name="Needs relabelling"))
    visit.save_dialog("")
    visit.save_dialog("Reviewer")
    panel.get_by_role("status").filter(has_text="Saved").first.wait_for()
    visit.click(panel.locator("summary", has_text="Export"))
    queue = work / "relabel.csv"
    with visit.page.expect_download() as waiting:
        visit.click(panel.get_by_role("button", name="Relabel queue, CSV"))
    waiting.value.save_as(queue)
    camera.take(visit, "task-queue")
    with queue.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    wrong = sum(votes.wrong[row["id"]] for row in rows)
    return {
        "rows": len(rows),
        "columns": list(rows[0]),
        "wrong labels in it": wrong,
        "wrong labels in the gallery": sum(votes.wrong.values()),
        "share of the gallery": len(rows) / len(votes.wrong),
        "share of the wrong labels": wrong / sum(votes.wrong.values()),
    }


def near_duplicates(visit: TaskVisit, camera: Camera, known: dict[str, Any]) -> dict[str, Any]:
    """The pairs that the page lists, compared with the planted ones."""
    card = visit.question("Near duplicates", _MOST)
    names = ids_of(card.locator(".tile"))
    words = {name: _words(text) for name, text in known["texts"].items()}
    pairs = list(zip(names[::2], names[1::2], strict=True))
    planted = {frozenset(pair): kind for *pair, kind in known["pairs"]}
    kinds = [planted.get(frozenset(pair), -1) for pair in pairs]
    equal = [words[one] == words[two] for one, two in pairs]
    right = [kind >= 0 or same for kind, same in zip(kinds, equal, strict=True)]
    listed = card.get_by_role("status").inner_text()
    visit.show(card.locator("ul.pairs > li").nth(equal.count(True) - 2))
    camera.take(visit, "task-copies")
    result = {
        "listed": listed,
        "pairs": len(pairs),
        "precision": float(np.mean(right)),
        "recall": sum(kind >= 0 for kind in kinds) / len(planted),
        "edited pairs": equal.count(False),
        "precision of edits": float(np.mean([r for r, same in zip(right, equal, strict=True) if not same])),
    }  # fmt: skip
    return result | {f"recall, {name}": kinds.count(k) / EACH for k, name in enumerate(KINDS)}


def _words(text: str) -> list[str]:
    return ["".join(c for c in word if c.isalnum()) for word in text.casefold().split()]


def two_encoders(visit: TaskVisit, camera: Camera) -> dict[str, Any]:
    """The table of both encoders, and the images of which ResNet-20 is uncertain but ResNet-56 is not."""
    visit.link("Compare")
    panel = visit.page.locator(".compare")
    panel.locator(".panel").last.locator(".tile").first.wait_for()
    rows, shares = [
        [text.replace("\u00a0", " ") for text in panel.locator(where).all_inner_texts()]
        for where in ("tbody tr", ".lead strong")
    ]
    facts = dict(row.split("\t", 1) for row in rows)
    plot = panel.locator(".scatter canvas")
    visit.show(panel.locator(".scatter"))
    visit.drag(plot.bounding_box(), (0.13, 0.03), (0.6, 0.3))
    panel.locator(".scatter .tile").first.wait_for()
    inside = panel.locator(".scatter").get_by_role("status").inner_text()
    camera.take(visit, "task-encoders")
    visit.click(visit.page.get_by_text("More certain", exact=True))
    movers = panel.locator(".panel").last
    movers.locator(".tile").first.wait_for()
    return {
        "rank correlation of kappa": float(shares[0]),
        "neighbours that are the same": shares[1],
        "table": {name: values.split("\t") for name, values in facts.items()},
        "rectangle": inside,
        "moved most": ids_of(movers.locator(".tile"))[:3],
    }


def both_maps(chrome: Any, address: str, camera: Camera) -> dict[str, Any]:
    """Draw a lasso around the left part of the first of both maps."""
    with TaskVisit(chrome, address) as visit:
        visit.load()
        visit.link("Compare")
        both = visit.page.locator(".both")
        both.locator(".legend span").first.wait_for()
        visit.page.get_by_text("Lasso", exact=True).click()
        visit.show(both)
        visit.page.wait_for_timeout(500)
        box = both.locator("canvas").first.bounding_box()
        visit.drag(box, *_circle(0.5, 0.5, 0.18, 0.2))
        words = visit.page.locator(".scatter").get_by_role("status")
        words.filter(has_text="selected on the map").wait_for()
        visit.page.locator(".scatter .tile").first.wait_for()
        camera.take(visit, "compare-maps")
        check(visit)
        return {"selected on the first map": words.inner_text()}


def novel(visit: TaskVisit, camera: Camera, work: Path, known: dict[str, Any]) -> dict[str, Any]:
    """The outliers that the page lists, compared with the planted ones, and the places of these by angle."""
    card = visit.question("Outliers", 2 * FOREIGN)
    names = ids_of(card.locator(".tile"))
    visit.show(card)
    camera.take(visit, "task-outliers")
    answers = load_questions(work / "planted.lance.questions.safetensors")
    place = {answers.ids[row]: i + 1 for i, row in enumerate(np.argsort(-answers.angle))}
    places = sorted(place[name] for name in known["foreign"])
    return {
        "listed": len(names),
        "beyond the fence": int((answers.angle > answers.far).sum()),
        "page": card.locator(".empty, .status").first.inner_text(),
        "planted": FOREIGN,
        "found": sum(name in names for name in known["foreign"]),
        "chance": FOREIGN / len(known["texts"]),
        "fence degrees": float(np.degrees(answers.far)),
        "largest angle degrees": float(np.degrees(answers.angle.max())),
        "places by angle": places,
        "among the first 10 by angle": sum(each <= FOREIGN for each in places),
    }


def map_pictures(chrome: Any, address: str, camera: Camera) -> dict[str, Any]:
    """Draw a lasso around the middle of the map, zoom in until thumbnails appear, and colour by kappa."""
    with TaskVisit(chrome, address) as visit:
        visit.open_map()
        rows = visit.selected()[1]
        visit.page.get_by_text("Lasso", exact=True).click()
        chosen, _ = visit.drag_map(*_circle(0.5, 0.5, 0.18, 0.2))
        visit.wait_selected(chosen)
        camera.take(visit, "map")
        check(visit)
    with TaskVisit(chrome, address, color_scheme="dark") as visit:
        visit.open_map()
        visit.page.get_by_label("Colour by").select_option("kappa")
        visit.page.locator(".ramp").wait_for()
        camera.take(visit, "map-dark")
        check(visit)
    with TaskVisit(chrome, address, width=400) as visit:
        visit.open_map()
        camera.take(visit, "map-400")
        if visit.overflow() > 0:
            raise AssertionError(f"the map is wider than the screen by {visit.overflow()} px")
        check(visit)
    return {"selected by a lasso": {"items": chosen, "of": rows}}


def _circle(x: float, y: float, wide: float, tall: float) -> list[tuple[float, float]]:
    """Points around an ellipse."""
    angles = [2 * math.pi * k / 24 for k in range(25)]
    return [(x + wide * math.cos(a), y + tall * math.sin(a)) for a in angles]


def check(visit: Visit) -> None:
    """No errors in the browser's console."""
    if visit.errors:
        raise AssertionError(f"errors in the browser's console: {visit.errors}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--out", type=Path, default=Path("results/serve/tasks.json"))
    parser.add_argument(
        "--images", action="store_true", help="only the tasks with images, and no record"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    work, folder = arguments.work, data_folder(arguments.data_dir)
    work.mkdir(parents=True, exist_ok=True)
    votes = image_galleries(work, folder)
    known = {} if arguments.images else caption_gallery(work, folder)
    camera = Camera(arguments.pictures)
    results: dict[str, Any] = {}
    with browser() as chrome:

        def run(name: str, address: str, task: Callable[[TaskVisit], dict[str, Any]]) -> None:
            with TaskVisit(chrome, address) as visit:
                visit.load()
                found = task(visit)
                check(visit)
                results[name] = {"clicks": visit.clicks} | found
            print(name, results[name], flush=True)

        with images(work) as address:
            results["map"] = map_pictures(chrome, address, camera)
            results["both maps"] = both_maps(chrome, address, camera)
            run("suspicious labels", address, lambda v: suspicious(v, camera, votes))
            run("relabel queue", address, lambda v: relabel_queue(v, camera, votes, work))
            run("two encoders", address, lambda v: two_encoders(v, camera))
        if arguments.images:
            return
        with sentences(work) as address:
            run("near duplicates", address, lambda v: near_duplicates(v, camera, known))
            run("novel", address, lambda v: novel(v, camera, work, known))
    setting = {
        "images": len(votes.wrong), "captions": len(known["texts"]), "copies": EACH * len(KINDS), "questions": FOREIGN,
    }  # fmt: skip
    line = "python -m benchmarks.explorer_tasks --work DIR"
    hashes = data_hashes(folder) | known["hashes"]
    write_record(Record("explorer_tasks", results, line, 0, setting, hashes), arguments.out)


@contextmanager
def images(work: Path) -> Iterator[str]:
    """The service of the images, without tags."""
    for old in work.glob("tasks.sqlite*"):
        old.unlink()
    options = [
        "--index", work / "resnet20.lance", "--compare-with", work / "resnet56.lance",
        "--label-column", "label", "--images", work / "pictures", "--tags", work / "tasks.sqlite",
    ]  # fmt: skip
    with serving([str(each) for each in options], log=work / "images.log") as address:
        yield address


@contextmanager
def sentences(work: Path) -> Iterator[str]:
    """The service of the captions."""
    options = ["--index", work / "planted.lance", "--text-column", "text"]
    with serving([str(each) for each in options], log=work / "sentences.log") as address:
        yield address


if __name__ == "__main__":
    main()
