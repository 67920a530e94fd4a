"""A visit to the explorer's page in headless Chromium: steps that return what the page shows.

The tests run them on a small gallery, and ``benchmarks.explorer`` on the real ones.
"""

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from aureole.data._image_files import open_picture

__all__ = ["FLAGS", "Camera", "Visit", "asks_for_members", "browser", "chromium", "serving"]

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# milliseconds from the navigation until the first picture, or the first item without one, is on the screen
_CLOCK = """
(() => {
  const done = () => requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.firstView ??= performance.now();
  }));
  document.addEventListener("load", (event) => {
    if (event.target instanceof HTMLImageElement && event.target.closest(".tile")) done();
  }, true);
  new MutationObserver(() => {
    if (document.querySelector(".tile.card, .tile.plain")) done();
  }).observe(document, { childList: true, subtree: true });
})();
"""


def chromium() -> str | None:
    """The path of Chromium, or None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browser() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield found
        found.close()


@contextmanager
def serving(options: Sequence[str], *, log: Path, **environment: Any) -> Iterator[str]:
    """The address of ``aureole serve`` with these options, on a free port."""
    command = [sys.executable, "-m", "aureole", "serve", *options, "--port", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, **environment
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"the service did not start: {log.read_text()[-2000:]}")
        yield found.group() + "/"
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


class Visit:
    """A separate tab with an empty cache; ``errors`` are the errors in its console."""

    def __init__(self, browser: Any, base: str, *, width: int = 1280, **options: Any) -> None:
        size = {"width": width, "height": 900 if width > 600 else 860}
        self.base = base
        self.context = browser.new_context(viewport=size, reduced_motion="reduce", **options)
        self.context.add_init_script(_CLOCK)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def load(self) -> float:
        """Open the gallery; seconds from the start of the navigation until the first items are on the screen."""
        self.page.goto(self.base, wait_until="commit")
        root = self.page.locator(
            "html[data-first-view]"
        )  # the page's content security policy does not allow waiting for a script
        root.wait_for(state="attached")
        return float(root.get_attribute("data-first-view")) / 1000

    def go(self, route: str) -> None:
        """Follow a link of the header or to an item."""
        self.page.evaluate("route => { location.hash = route }", route)

    def kappas(self, where: str = ".grid", count: int = 12) -> list[float]:
        """The kappas of the first items of the first such list."""
        found = self.page.locator(where).first.locator(".kappa")
        found.first.wait_for()
        texts = found.all_text_contents()[:count]
        return [_number(text) for text in texts]

    def sort(self, name: str) -> None:
        """Choose an order of the gallery by its name."""
        self.page.get_by_text(name, exact=True).click()
        self.page.locator(".lane ul").first.locator(".kappa").first.wait_for()

    def open_first(self) -> str:
        """Open the first item of the first row, with its map; its name."""
        # rows arrive by separate requests: the first tile to appear may be from the other end
        self.page.locator(".lane ul").first.locator(".tile").first.click()
        self.settle()
        self.page.locator(".map .dots circle").first.wait_for()
        return self.page.locator("h1").inner_text()

    def settle(self) -> None:
        """Wait until the set of the current item has loaded."""
        self.page.locator(".summary strong").wait_for()
        self.page.locator("[aria-busy]").first.wait_for(state="detached")

    def members(self) -> tuple[int, float]:
        """(Number of items in the set, radius of the circle on the map)."""
        self.settle()
        count = self.page.locator(".summary strong").inner_text()
        radius = self.page.locator(".map .cap").get_attribute("r")
        return int(_number(count)), float(radius)

    def move_mass(self, percent: int) -> tuple[int, float]:
        """Move the slider of the mass, and wait for the members."""
        with self.page.expect_response(asks_for_members):
            self.page.locator("#mass").fill(str(percent))
        return self.members()

    def give_picture(self, path: Path) -> float:
        """Upload a picture; its kappa."""
        self.page.locator(".studio img").wait_for()  # the example that is shown initially
        self.settle()
        with self.page.expect_response(asks_for_members):
            self.page.locator("#file").set_input_files(path)
        self.settle()
        return self.verdict()

    def verdict(self, place: int = 0) -> float:
        """A kappa that the page shows for a query."""
        return _number(self.page.locator(".verdict-line strong").nth(place).inner_text())

    def type_sentence(self, side: str, text: str) -> float:
        """Type sentence ``a`` or ``b``; its kappa."""
        with self.page.expect_response(lambda answer: _asks_about(answer, text)) as answer:
            self.page.locator(f"#sentence-{side}").fill(text)
        answer.value.finished()
        self.page.wait_for_timeout(100)
        self.settle()
        return self.verdict("ab".index(side))

    def threshold(self) -> str:
        """The label of the rejection curve's handle."""
        handle = self.page.locator(".handle")
        handle.wait_for()
        return handle.get_attribute("aria-valuetext").replace("\u00a0", " ")

    def drag_threshold(self, share: float) -> str:
        """Drag the handle to the given share of rejected items."""
        self.threshold()
        box = self.page.locator(".panel svg").bounding_box()
        x = box["x"] + box["width"] * (56 + share * (720 - 56 - 20)) / 720
        y = box["y"] + box["height"] / 2
        knob = self.page.locator(".handle circle").bounding_box()
        self.page.mouse.move(knob["x"] + 5, knob["y"] + 5)
        self.page.mouse.down()
        self.page.mouse.move(x, y, steps=8)
        self.page.mouse.up()
        return self.threshold()

    def open_map(self) -> None:
        """Open the map of the gallery, and wait for its views."""
        self.page.goto(f"{self.base}#/map", wait_until="commit")
        self.page.locator(".linked .page[data-count]").wait_for()
        self.page.wait_for_timeout(300)  # the map is painted

    def selected(self) -> tuple[int, int]:
        """(Number of selected items, number of items)."""
        numbers = re.findall(r"[\d,]+", self.page.locator(".selected").inner_text())
        counts = [int(each.replace(",", "")) for each in numbers]
        return counts[0], counts[-1]

    def wait_selected(self, count: int) -> None:
        """Wait until all views show a selection of this size."""
        self.page.locator(f".linked .page[data-count='{count}']:not([aria-busy])").wait_for()

    def filters(self) -> list[dict[str, Any]]:
        """The filters in the address."""
        query = urllib.parse.urlsplit(self.page.url).fragment.partition("?")[2]
        return json.loads(dict(urllib.parse.parse_qsl(query)).get("s", "[]"))

    def drag_map(self, *corners: tuple[float, float]) -> tuple[int, list[list[float]]]:
        """Drag across the map, through points in fractions of its size; (selected items, the polygon)."""
        box = self.page.locator(".plane canvas").bounding_box()
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        for place in places[1:]:
            self.page.mouse.move(*place, steps=6)
        self.page.mouse.up()
        self.page.locator(".chip", has_text="Area on the map").wait_for()
        (polygon,) = [each["lasso"] for each in self.filters() if "lasso" in each]
        return self.selected()[0], polygon

    def on_screen(self, x: float, y: float) -> tuple[float, float]:
        """Where the map shows a point, if it shows everything."""
        canvas = self.page.locator(".plane canvas")
        box = canvas.bounding_box()
        self.page.get_by_role("button", name="Select view").click()
        self.page.locator(".chip").wait_for()
        (polygon,) = [each["lasso"] for each in self.filters() if "lasso" in each]
        self.page.locator(".chip").click()
        self.page.locator(".chip").wait_for(state="detached")
        (left, low), (right, high) = polygon[0], polygon[2]
        across, down = (x - left) / (right - left), (high - y) / (high - low)
        return box["x"] + across * box["width"], box["y"] + down * box["height"]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )


class Camera:
    """Takes small screenshots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, visit: Visit, name: str) -> None:
        """The screen as a WebP of a few tens of kilobytes."""
        visit.page.wait_for_load_state("networkidle")  # all thumbnails are loaded
        visit.page.wait_for_timeout(400)
        with open_picture(visit.page.screenshot()) as picture:
            picture.convert("RGB").save(self.folder / f"{name}.webp", quality=82, method=6)


def asks_for_members(answer: Any) -> bool:
    """Whether a response is that of the set on the page: comparisons only need a count."""
    return answer.url.endswith("/v1/search") and answer.request.post_data_json["limit"] > 1


def _asks_about(answer: Any, text: str) -> bool:
    # the initial sentences of the page are queried too
    return answer.url.endswith("/v1/embed") and answer.request.post_data_json == {"texts": [text]}


def _number(text: str) -> float:
    return float(re.sub(r"[^\d.]", "", text))
