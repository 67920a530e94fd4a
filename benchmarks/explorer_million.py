"""A million items in the explorer: the map's CPU time, the first view, frames per second, and a lasso of 100,000.

``python -m benchmarks.explorer_million --work DIR [--rows 1000000] [--sample 50000] [--nice 0] [--out FILE]``

The gallery is that of ``benchmarks.explorer_galleries``: a Lance table with 32 dimensions and 40 classes. The map is
made by ``aureole index map``; an existing one is left unchanged unless ``--refit`` is given, and then its CPU time is
the one in ``DIR/map.json``. The page runs in headless Chromium, without a GPU, on the same machine as the service:

- first view: from the start of the navigation, with an empty cache, until the first items are on the screen (gallery),
  or until points are on the canvas and until all linked views show the items (map);
- frames: those that the browser draws in each second while the mouse drags the map in circles, and while its wheel
  zooms in and out; the slowest frame includes the repaint after the last movement;
- lasso: from the release of the mouse button until the map, the histogram, the classes and the list show the selection.

On a machine with other work, ``--nice -19`` gives the service and the browser the priority; this needs root.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from aureole.explorer import map_path, read_map
from aureole.records import Record, write_record
from aureole.retrieval import CredibleIndex
from benchmarks.explorer_galleries import million_gallery
from benchmarks.explorer_visit import Visit, browser, serving

_TIMES = 5
_SECONDS = 4.0  # of movement
# when the canvas first has points, and when the linked views show what is selected
_CLOCK = """
(() => {
  const tiny = document.createElement("canvas");
  tiny.width = tiny.height = 16;
  const own = tiny.getContext("2d", { willReadFrequently: true });
  const data = () => document.documentElement.dataset;
  const watch = () => {
    const canvas = document.querySelector(".plane canvas");
    if (canvas !== null && canvas.width > 1 && data().firstPoints === undefined) {
      own.drawImage(canvas, 0, 0, 16, 16);
      if (own.getImageData(0, 0, 16, 16).data.some((value) => value > 0)) data().firstPoints = performance.now();
    }
    if (document.querySelector(".linked .page[data-count]:not([aria-busy])") !== null) {
      data().firstLinked ??= performance.now();
      if (data().firstPoints !== undefined) return;
    }
    requestAnimationFrame(watch);
  };
  document.addEventListener("DOMContentLoaded", () => requestAnimationFrame(watch));
  let released = 0;
  let before = null;
  let seen = true;
  document.addEventListener("pointerup", (event) => {
    if (!(event.target instanceof HTMLCanvasElement)) return;
    released = performance.now();
    before = document.querySelector(".linked .page")?.dataset.count;
    seen = false;
    delete data().lasso;
  }, true);
  new MutationObserver(() => {
    const page = document.querySelector(".linked .page[data-count]:not([aria-busy])");
    if (seen || page === null || page.dataset.count === before) return;
    seen = true;
    requestAnimationFrame(() => requestAnimationFrame(() => {
      data().lasso = performance.now() - released;
    }));
  }).observe(document, { subtree: true, attributes: true, attributeFilter: ["aria-busy", "data-count"] });
  globalThis.frames_ = [];
  const tick = (now) => {
    globalThis.frames_.push(now);
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
})();
"""


def make_map(work: Path, index: Path, sample: int) -> dict[str, Any]:
    """Run ``aureole index map``: CPU seconds of the process, wall-clock seconds, and what it reports."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "aureole", "index", "map", str(index), "--refit", "--json"]
    command += ["--sample", str(sample)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(done.stdout)
    result = {
        "CPU seconds": round(cpu, 1),
        "seconds": round(time.monotonic() - started, 1),
        "peak megabytes": round(after.ru_maxrss / 1024),
        "load average after": round(os.getloadavg()[0], 2),
        "fitted": found["fitted"],
        "neighbours kept": found["neighbours_kept"],
    }
    (work / "map.json").write_text(json.dumps(result))
    return result


@contextmanager
def priority(nice: int) -> Iterator[None]:
    """Gives this process and all its children a priority, repeatedly: Chromium sets that of its renderers."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.1):
            for thread in _threads(os.getpid()):
                with suppress(OSError):  # it has ended
                    if os.getpriority(os.PRIO_PROCESS, thread) != nice:
                        os.setpriority(os.PRIO_PROCESS, thread, nice)

    keeper = threading.Thread(target=run, daemon=True)
    if nice:
        keeper.start()
    yield
    done.set()


def _threads(root: int) -> list[int]:
    """The threads of a process and of all processes below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family = {root}
    for _ in range(10):  # generations
        family |= {child for child, parent in parents.items() if parent in family}
    found = []
    for process in family:
        with suppress(OSError):
            found += [int(name) for name in os.listdir(f"/proc/{process}/task")]
    return found


class MapVisit(Visit):
    """A visit that measures the map."""

    def __init__(self, chrome: Any, base: str) -> None:
        super().__init__(chrome, base)
        self.context.add_init_script(_CLOCK)
        self.page.close()
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def first_map(self) -> tuple[float, float]:
        """Seconds until the first points, and until all linked views, of a navigation to the map."""
        self.page.goto(f"{self.base}#/map", wait_until="commit")
        root = self.page.locator("html[data-first-points][data-first-linked]")
        root.wait_for(state="attached", timeout=120_000)
        points, linked = (
            float(root.get_attribute(f"data-first-{name}")) / 1000 for name in ("points", "linked")
        )
        return points, linked

    def frames(self, move: Any) -> dict[str, float]:
        """Frames per second during movements, and the slowest frame until a second after them."""
        self.page.wait_for_timeout(1000)
        self.page.evaluate("() => void (globalThis.frames_.length = 0)")
        started, step = time.monotonic(), 0
        while time.monotonic() - started < _SECONDS:
            move(step)
            step += 1
        moving = len(self.page.evaluate("() => globalThis.frames_"))
        seconds = time.monotonic() - started
        self.page.wait_for_timeout(1000)
        gaps = np.diff(self.page.evaluate("() => globalThis.frames_"))
        during = gaps[: moving - 1]
        return {
            "frames per second": round(moving / seconds, 1),
            "95 % of frames within ms": round(float(np.quantile(during, 0.95)), 1),
            "slowest frame ms": round(float(gaps.max()), 1),
            "events per second": round(step / seconds, 1),
        }

    def pan(self) -> dict[str, float]:
        """Drag the map in circles, zoomed in fourfold."""
        box = self.page.locator(".plane canvas").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        mouse = self.page.mouse
        mouse.move(x, y)
        for _ in range(4):
            mouse.wheel(0, -150)
        self.page.wait_for_timeout(1000)
        mouse.down()
        found = self.frames(
            lambda step: mouse.move(x + 150 * math.sin(step / 30), y + 150 * math.cos(step / 30))
        )
        mouse.up()
        self.page.get_by_title("Show everything").click()
        return found

    def zoom(self) -> dict[str, float]:
        """Turn the wheel: in for 60 steps, out for 60 steps."""
        box = self.page.locator(".plane canvas").bounding_box()
        mouse = self.page.mouse
        mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"])
        found = self.frames(lambda step: mouse.wheel(0, -30 if step % 120 < 60 else 30))
        self.page.get_by_title("Show everything").click()
        return found

    def lasso(self, corners: list[tuple[float, float]]) -> tuple[float, int]:
        """(Seconds from the release until all views show the selection, selected items)."""
        mouse = self.page.mouse
        mouse.move(*corners[0])
        mouse.down()
        for corner in corners[1:]:
            mouse.move(*corner, steps=2)
        mouse.up()
        root = self.page.locator("html[data-lasso]")
        root.wait_for(state="attached", timeout=60_000)
        seconds = float(root.get_attribute("data-lasso")) / 1000
        return seconds, self.selected()[0]

    def clear(self, rows: int) -> None:
        """Remove the lasso."""
        self.page.locator(".chip").click()
        self.wait_selected(rows)


def ring(xy: np.ndarray, wanted: int) -> list[tuple[float, float]]:
    """A polygon around the median of the map with so many points."""
    centre = np.median(xy, axis=0)
    radius = np.partition(np.linalg.norm(xy - centre, axis=1), wanted)[wanted]
    angles = np.linspace(0, 2 * math.pi, 48, endpoint=False)
    return [
        (float(centre[0] + radius * math.cos(a)), float(centre[1] + radius * math.sin(a)))
        for a in angles
    ]


def measure_page(chrome: Any, address: str, xy: np.ndarray) -> dict[str, Any]:
    """First views, frames and lassos."""
    rows, found = len(xy), {}
    views = []
    for _ in range(_TIMES):
        with MapVisit(chrome, address) as visit:
            gallery = visit.load()
        with MapVisit(chrome, address) as visit:
            views.append((gallery, *visit.first_map()))
    names = ("gallery", "map, points", "map, all views")
    for name, seconds in zip(names, zip(*views, strict=True), strict=True):
        found[f"first view seconds, {name}"] = summary(seconds)
    print(found, flush=True)
    with MapVisit(chrome, address) as visit:
        visit.first_map()
        visit.page.wait_for_timeout(1500)
        found["pan"] = visit.pan()
        visit.page.wait_for_timeout(1500)
        found["zoom"] = visit.zoom()
        print(found, flush=True)
        visit.page.wait_for_timeout(1500)
        wanted = ring(xy, rows // 10)
        places = [visit.on_screen(*wanted[0])]
        canvas = visit.page.locator(".plane canvas").bounding_box()
        span = np.ptp(xy, axis=0)
        pixels = places[0]
        # the scale is the same in both directions, so that one more point gives it
        other = visit.on_screen(wanted[0][0] - span[0] / 10, wanted[0][1])
        scale = (pixels[0] - other[0]) / (span[0] / 10)
        x0, y0 = wanted[0]
        corners = [
            (float(pixels[0] + (x - x0) * scale), float(pixels[1] - (y - y0) * scale))
            for x, y in wanted
        ]
        inside = [
            canvas["x"] < x < canvas["x"] + canvas["width"]
            and canvas["y"] < y < canvas["y"] + canvas["height"]
            for x, y in corners
        ]
        if not all(inside):
            raise AssertionError("the lasso leaves the canvas")
        visit.page.get_by_text("Lasso", exact=True).click()
        seconds, counts = [], []
        for _ in range(_TIMES):
            took, count = visit.lasso(corners)
            seconds.append(took)
            counts.append(count)
            visit.clear(rows)
        found["lasso"] = summary(seconds) | {"items": int(statistics.median(counts))}
        if visit.errors:
            raise AssertionError(f"errors in the browser's console: {visit.errors}")
    return found


def summary(seconds: Any) -> dict[str, float]:
    """Median and slowest."""
    return {
        "median": round(statistics.median(seconds), 3),
        "slowest": round(max(seconds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=50_000)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/serve/million.json"))
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    where = million_gallery(work, arguments.rows)
    note = work / "map.json"
    stored = map_path(str(where))
    assert stored is not None
    if arguments.refit or not stored.is_file() or not note.is_file():
        make_map(work, where, arguments.sample)
    metrics: dict[str, Any] = {"map": json.loads(note.read_text())}
    print(metrics, flush=True)
    index = CredibleIndex.open(where)
    found = read_map(index)
    assert found is not None
    assert len(found.xy) == arguments.rows
    load = [round(os.getloadavg()[0], 2)]
    started = time.monotonic()
    options = ["--index", str(where), "--label-column", "label"]
    with (
        priority(arguments.nice),
        serving(options, log=work / "million.log") as address,
        browser() as chrome,
    ):
        metrics["service ready after seconds"] = round(time.monotonic() - started, 1)
        metrics |= measure_page(chrome, address, np.asarray(found.xy))
    load.append(round(os.getloadavg()[0], 2))
    metrics["load average before and after the page"] = load
    print(json.dumps(metrics, indent=1))
    settings = {
        "rows": arguments.rows,
        "dim": index.schema.dim,
        "views": _TIMES,
        "screen": "1280 x 900",
        "nice": arguments.nice,
    }
    command = f"python -m benchmarks.explorer_million --work DIR --rows {arguments.rows}"
    command += f" --sample {arguments.sample} --nice {arguments.nice}"
    write_record(Record("explorer_million", metrics, command, 0, settings), arguments.out)


if __name__ == "__main__":
    main()
