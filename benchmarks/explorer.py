"""The explorer on real galleries, used like a new user would: what the page shows, how fast, and screenshots.

``python -m benchmarks.explorer --work DIR [--pictures docs/pictures] [--out results/serve/page.json]``

``DIR`` is the output of ``benchmarks.explorer_galleries``. Each gallery is served by a separate process on this
machine, one after the other. The first view is the time from the start of a navigation, with an empty cache, until the
first thumbnails are painted.
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aureole.data import open_picture
from aureole.records import Record, write_record
from benchmarks.explorer_galleries import HEAD, MINILM
from benchmarks.explorer_visit import Camera, Visit, asks_for_members, browser, serving

NAMES = ("cifar10h", "captions", "million")
_VIEWS = 5
VAGUE = "Something is happening."
PRECISE = "Two boys in red shirts play chess on a park bench."


def options_of(name: str, work: Path) -> list[str]:
    """The options of ``aureole serve`` for a gallery."""
    index = ["--index", str(work / f"{name}.lance")]
    if name == "cifar10h":
        parts = ["--encoder", str(work / "encoder"), "--images", str(work / "pictures")]
        return [*index, *parts, "--label-column", "label"]
    if name == "captions":
        return [*index, "--encoder", MINILM, "--head", HEAD, "--text-column", "text"]
    return [*index, "--label-column", "label"]


def first_views(chrome: Any, address: str) -> dict[str, float]:
    """Seconds until the first view, for visits with an empty cache."""
    seconds = []
    for _ in range(_VIEWS):
        with Visit(chrome, address) as visit:
            seconds.append(visit.load())
            _check(visit)
    return {"median": round(statistics.median(seconds), 3), "slowest": round(max(seconds), 3)}


def try_pictures(chrome: Any, address: str, work: Path, camera: Camera) -> dict[str, Any]:
    """Load, sort, open an item, move the slider, upload a picture and degrade it, move the threshold."""
    with Visit(chrome, address) as visit:
        visit.load()
        camera.take(visit, "gallery")
        least = visit.kappas(".lane ul", 1)[0]
        visit.sort("Most certain first")
        most = visit.kappas(".lane ul", 1)[0]
        if not least < most:
            raise AssertionError(f"the order was not reversed: {least} is first, then {most}")
        visit.sort("Least certain first")
        _open_item(visit, "test-09560")
        # the picture shows the set of 50 %
        sets = {percent: visit.move_mass(percent)[0] for percent in (80, 95, 50)}
        _point_at(visit)
        camera.take(visit, "item")
        visit.go("#/ask")
        picture = work / "pictures" / "test-00001.png"  # a ship
        kappa = {"sharp": visit.give_picture(picture)}
        kappa["a file blurred by 2"] = visit.give_picture(_blurred(picture, work / "blurred.png"))
        visit.give_picture(picture)
        kappa["cropped to 40 %"] = visit.turn("crop", 40)
        visit.turn("crop", 100)
        kappa["blurred by 2 on the page"] = visit.turn("blur", 2)
        blurred = visit.members()[0]
        camera.take(visit, "ask-picture")
        visit.turn("blur", 0)
        sharp = visit.members()[0]
        visit.go("#/threshold")
        start = visit.threshold()
        dragged = visit.drag_threshold(0.3)
        visit.page.locator(".rejection .grid .tile").first.wait_for()
        camera.take(visit, "threshold")
        _check(visit)
    routes = {"gallery": "#/", "item": "#/item/test-09560", "threshold": "#/threshold"}
    _narrow(chrome, address, camera, routes)
    with Visit(chrome, address, color_scheme="dark") as visit:
        visit.load()
        _open_item(visit, "test-09560")
        camera.take(visit, "item-dark")
        _check(visit)
    return {
        "first lane": {"least": least, "most": most},
        "members by mass of test-09560": sets,
        "kappa of an uploaded picture": kappa,
        "members at 95 %": {"sharp": sharp, "blurred by 2": blurred},
        "threshold": {"start": start, "dragged": dragged},
    }


def try_sentences(chrome: Any, address: str, camera: Camera) -> dict[str, Any]:
    """Load, sort, open an item, move the slider, type a vague and a precise sentence."""
    with Visit(chrome, address) as visit:
        visit.load()
        camera.take(visit, "captions")
        visit.sort("Most certain first")
        name = visit.open_first()
        sets = {percent: visit.move_mass(percent)[0] for percent in (50, 80, 95)}
        _point_at(visit)
        camera.take(visit, "caption")
        visit.go("#/ask")
        vague = visit.type_sentence("a", VAGUE)
        wide = visit.members()[0]
        precise = visit.type_sentence("b", PRECISE)
        with visit.page.expect_response(asks_for_members):
            visit.page.get_by_text("Around B").click()
        narrow = visit.members()[0]
        camera.take(visit, "ask-text")
        _check(visit)
    _narrow(chrome, address, camera, {"ask-text": "#/ask"})
    return {
        "most certain": {"text": name, "members by mass": sets},
        "kappa": {VAGUE: vague, PRECISE: precise},
        "members at 95 %": {VAGUE: wide, PRECISE: narrow},
    }


def _blurred(picture: Path, out: Path) -> Path:
    """A copy of a picture, blurred independently of the service."""
    from PIL import ImageFilter

    with open_picture(picture) as sharp:
        sharp.convert("RGB").filter(ImageFilter.GaussianBlur(2)).save(out)
    return out


def _open_item(visit: Visit, name: str) -> None:
    visit.go(f"#/item/{name}")
    visit.page.locator("h1").wait_for()
    visit.settle()
    visit.page.locator(".dots circle").first.wait_for()


def _point_at(visit: Visit) -> None:
    """Select an item of the map with the keyboard."""
    visit.page.locator(".map svg").focus()
    for _ in range(5):
        visit.page.keyboard.press("ArrowRight")


def _narrow(chrome: Any, address: str, camera: Camera, routes: dict[str, str]) -> None:
    """The same views on a screen of 400 pixels."""
    with Visit(chrome, address, width=400) as visit:
        visit.load()
        for name, route in routes.items():
            visit.go(route)
            visit.page.locator("h1").wait_for()
            visit.page.wait_for_timeout(1200)
            camera.take(visit, f"{name}-400")
            if visit.overflow() > 0:
                raise AssertionError(f"{name} is wider than the screen by {visit.overflow()} px")
        _check(visit)


def _check(visit: Visit) -> None:
    if visit.errors:
        raise AssertionError(f"errors in the browser's console: {visit.errors}")


@contextmanager
def _served(name: str, work: Path) -> Iterator[str]:
    with serving(options_of(name, work), log=work / f"{name}.log") as address:
        yield address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--out", type=Path, default=Path("results/serve/page.json"))
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    arguments = parser.parse_args()
    camera = Camera(arguments.pictures)
    metrics: dict[str, Any] = {}
    load = [round(os.getloadavg()[0], 1)]
    with browser() as chrome:
        for name in arguments.only:
            with _served(name, arguments.work) as address:
                found: dict[str, Any] = {"first view seconds": first_views(chrome, address)}
                if name == "cifar10h":
                    found |= try_pictures(chrome, address, arguments.work, camera)
                elif name == "captions":
                    found |= try_sentences(chrome, address, camera)
            metrics[name] = found
            print(name, found)
    if set(arguments.only) != set(NAMES):
        return  # pictures only: a record has all galleries
    metrics["console errors"] = 0
    metrics["load average"] = {"before": load[0], "after": round(os.getloadavg()[0], 1)}
    setting = {"views": _VIEWS, "rows": {"cifar10h": 10_000, "captions": 5_000, "million": 10**6}}
    command = "python -m benchmarks.explorer --work DIR"
    write_record(Record("explorer", metrics, command, 0, setting), arguments.out)


if __name__ == "__main__":
    main()
