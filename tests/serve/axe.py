"""Accessibility violations of a page, found by axe-core."""

from importlib.resources import files

import pytest


def violations(page):
    """(Rule, elements) of each violation on a page of Playwright; skips the test if axe-core is not installed."""
    package = pytest.importorskip("axe_playwright_python")
    if not page.evaluate("'axe' in window"):
        page.evaluate((files(package) / "axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        (each["id"], [node["target"] for node in each["nodes"]]) for each in found["violations"]
    ]
