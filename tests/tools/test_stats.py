"""``tools/stats.py`` on a small package whose figures are known."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "stats.py"


@pytest.fixture(scope="module")
def stats():
    spec = importlib.util.spec_from_file_location("stats_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def report(stats, tmp_path):
    files = {
        "__init__.py": 'from toy._left import f\n_LAZY = {"g": 1}\n__all__ = ["f", *_LAZY]\n',
        "errors.py": '__all__ = ["ToyError"]\n__all__ += ["tidy"]\n',
        "_left.py": 'def f(a, *b, c=1, **d):\n    """Doc."""\n    from toy._right import g\n\n    return g\n',
        "_right.py": (
            "from typing import TYPE_CHECKING\nfrom . import _left\n"
            "if TYPE_CHECKING:\n    from toy import sub\n\n"
            "class C:\n    def method(self, a):\n        return a\n"
        ),
        "sub/__init__.py": "from toy import _right\n",
        "sub/leaf.py": "def shown(): ...\ndef _hidden(): ...\n",
    }
    for name, text in files.items():
        path = tmp_path / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return stats.measure(tmp_path / "toy")


def test_sizes(report):
    assert len(report.files) == 6
    assert report.lines == 3 + 2 + 5 + 8 + 1 + 2
    assert max(place.size for place in report.functions) == 4  # without the docstring
    assert max(place.size for place in report.parameters) == 4  # a, *b, c, **d


def test_names(report):
    assert report.package_names == 4  # f, g; ToyError, tidy
    assert report.names == 5  # and shown, in a leaf module


def test_cycles(report):
    assert report.cycles == [["toy._left", "toy._right"]]  # not through TYPE_CHECKING


def test_bounds(stats):
    assert stats.is_over(151, 150)
    assert not stats.is_over(150, 150)
    assert stats.is_over(119, (120, 250))
    assert not stats.is_over(10**6, None)
