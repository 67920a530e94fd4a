"""Whether newcomers find their answers in the docs: thirty questions, asked of the real search box in Chromium.

``python -m benchmarks.docs_reading [docs/_build/html] [--out results/docs/reading.json]``, after ``make docs`` into an
empty folder: Sphinx leaves the index words of unchanged pages out of an incremental build.

Each question of ``tests/docs/newcomer_questions.toml`` has the words that a newcomer would type, chosen before the
pages were read. The script opens the start page, types them, presses Enter, and counts the results above the page with
the answer; then it opens this result and checks that the page contains the answer. If the page is not among the first
``FIRST`` results, it follows the question's links from the start page (``links``: their texts) instead. A click is a
followed link; opening a search result is one.
"""

import argparse
import functools
import http.server
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aureole.records import Record, write_record
from benchmarks.explorer_visit import browser

__all__ = ["FIRST", "QUESTIONS", "questions", "read", "serving_files"]

QUESTIONS = Path(__file__).parents[1] / "tests" / "docs" / "newcomer_questions.toml"
FIRST = 5  # results that a reader looks at
TARGET = 2  # clicks
_FINISHED = """() => /Search finished|did not match/.test(
    document.querySelector("#search-results p.search-summary").textContent)"""


def questions() -> list[dict[str, Any]]:
    """The questions with their sources, words and answers."""
    return tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))["question"]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """The address at which the files of a folder are served."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def read(page: Any, base: str, question: dict[str, Any]) -> dict[str, Any]:
    """How one question is answered: the rank of the page in the search, the way taken, and the number of clicks."""
    target = base + question["page"] + ".html"
    found = [
        address.split("#")[0].split("?")[0] for address in _search(page, base, question["words"])
    ]
    rank = found.index(target) + 1 if target in found else None
    if rank is not None and rank <= FIRST:
        way, clicks = "search", 1
        page.locator("ul.search li > a").nth(rank - 1).click()
    else:
        way, clicks = "links", len(question.get("links", ()))
        page.goto(base + "index.html")
        for text in question.get("links", ()):
            page.get_by_role("link", name=text, exact=True).first.click()
    page.wait_for_load_state()
    here = page.url.split("#")[0].split("?")[0] == target
    return {
        "question": question["ask"],
        "source": question.get("source", "our own"),
        "words": question["words"],
        "page": question["page"],
        "answer": question["answer"],
        "rank in the search": rank,
        "way": way,
        "clicks": clicks,
        "answered": here
        and _plain(question["answer"]) in _plain(page.locator("article").inner_text()),
    }


def _search(page: Any, base: str, words: str) -> list[str]:
    """The addresses of the results, in the order of the results page."""
    page.goto(base + "index.html")
    box = page.locator("input[name=q]").first
    box.fill(words)
    box.press("Enter")
    page.wait_for_selector("#search-results p.search-summary")
    page.wait_for_function(_FINISHED)
    return page.locator("ul.search li > a").evaluate_all("links => links.map(link => link.href)")


def _plain(text: str) -> str:
    return " ".join(
        text.replace("\u2019", "'").replace("\u201c", '"').replace("\u201d", '"').split()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("html", type=Path, nargs="?", default=Path("docs/_build/html"))
    parser.add_argument("--out", type=Path, default=Path("results/docs/reading.json"))
    arguments = parser.parse_args()
    with serving_files(arguments.html) as base, browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(180_000)  # on a busy machine
        answers = [read(page, base, question) for question in questions()]
    for answer in answers:
        state = "ok" if answer["answered"] else "NO"
        rank = answer["rank in the search"]
        print(
            f"{state}  {answer['clicks']} by {answer['way']:6s} rank {rank!s:4s} {answer['question']}"
        )
    metrics = {
        "questions": len(answers),
        "from public trackers": sum(answer["source"] != "our own" for answer in answers),
        "answered": sum(answer["answered"] for answer in answers),
        f"answered within {TARGET} clicks": sum(
            a["answered"] and a["clicks"] <= TARGET for a in answers
        ),
        "answered by the search": sum(a["answered"] and a["way"] == "search" for a in answers),
        "page is the first result": sum(a["rank in the search"] == 1 for a in answers),
        "answers": answers,
    }
    command = "python -m benchmarks.docs_reading"
    settings = {"results looked at": FIRST, "target, clicks": TARGET}
    write_record(Record("docs-reading", metrics, command=command, settings=settings), arguments.out)


if __name__ == "__main__":
    main()
