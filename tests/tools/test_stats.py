"""``tools/stats.py`` on small modules whose figures are known."""

import ast
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


def test_parameters_and_lengths(stats):
    code = """
class C:
    def method(self, a, *, b):
        \"\"\"A docstring
        of two lines.\"\"\"
        return a

def free(a, *b, c=1, **d):
    def inner(self):
        return self
    return inner
"""
    found = {
        f.name: (stats.parameters(f, m), stats.length(f))
        for f, m in stats.functions(ast.parse(code))
    }
    assert found == {"method": (2, 2), "free": (4, 4), "inner": (1, 2)}


def test_import_cycles(stats):
    sources = {
        "toy.left": "def f():\n    from toy.right import g\n    return g",
        "toy.right": "from toy import left\nif TYPE_CHECKING:\n    from toy import far",
        "toy.far": "from toy import right",
        "toy": "",
    }
    trees = {name: ast.parse(text) for name, text in sources.items()}
    (cycle,) = stats.import_cycles(trees)
    assert {"toy.left", "toy.right"} == set(cycle.split(" -> "))


def test_a_budget_that_is_exceeded_is_marked(stats):
    assert stats.Figure("lines", 11, 10).is_over
    assert not stats.Figure("lines", 10, 10).is_over
    assert not stats.Figure("words", 10**6).is_over
