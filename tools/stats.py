"""Print the sizes of the project against their budgets; exit with 1 where one is exceeded.

``python tools/stats.py`` (or ``make stats``) reads the files that git tracks and imports the installed library. With
``--list``, every function and file that is over a limit is named.

Definitions
-----------
- Function length: from ``def`` to the last line, without the docstring. Nested functions count on their own, too.
- Parameters: all of them, ``*args`` and ``**kwargs`` once each, without ``self`` and ``cls``.
- Public names: the distinct names in ``__all__`` of the packages below ``aureole``.
- Import cycles: groups of modules that import each other, imports inside functions included, ``if TYPE_CHECKING`` not.
"""

import argparse
import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "src/aureole"
MAX_PARAMETERS, MAX_FUNCTION = 8, 80
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Figure:
    """A measured size, its budget (None for information), and the places that exceed a limit."""

    name: str
    value: float
    budget: int | None = None
    places: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.budget is not None and self.value > self.budget


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks and that match one of the patterns."""
    output = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [path for line in output.splitlines() if (path := ROOT / line).is_file()]


def lines_of(paths: list[Path]) -> int:
    """Count the lines of some files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words_of(paths: list[Path]) -> int:
    """Count the words of some files."""
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def functions(tree: ast.AST, *, method: bool = False) -> Iterator[tuple[Function, bool]]:
    """Yield every function, and True if it is defined in a class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, method
            yield from functions(node)
        else:
            yield from functions(node, method=isinstance(node, ast.ClassDef))


def length(function: Function) -> int:
    """Count the lines of a function without its docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return total
    first = function.body[0]
    return total - ((first.end_lineno or first.lineno) - first.lineno + 1)


def parameters(function: Function, method: bool) -> int:
    """Count the parameters of a function, without ``self`` and ``cls``."""
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    bound = method and bool(named) and named[0].arg in ("self", "cls", "mcs")
    return len(named) - bound + bool(signature.vararg) + bool(signature.kwarg)


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from runtime_nodes(node)


def import_cycles(trees: dict[str, ast.AST]) -> list[str]:
    """Return the cycles of the import graph, one module of each removed after it is found."""
    graph = {
        name: {
            target
            for node in runtime_nodes(tree)
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
            for alias in node.names
            for inner in [f"{node.module}.{alias.name}"]
            for target in [inner if inner in trees else node.module]
            if target in trees and target != name
        }
        for name, tree in trees.items()
    }
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(" -> ".join(error.args[1]))
            graph.pop(error.args[1][0])
        else:
            return found


def code_figures(paths: list[Path]) -> Iterator[Figure]:
    """Yield the figures of the library's source."""
    trees = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    sizes, wide, long = [], [], []
    most = 0
    for name, tree in trees.items():
        for function, method in functions(tree):
            sizes.append(length(function))
            count = parameters(function, method)
            most = max(most, count)
            where = f"{name}:{function.lineno} {function.name}"
            if count > MAX_PARAMETERS:
                wide.append(f"{where}: {count} parameters")
            if sizes[-1] > MAX_FUNCTION:
                long.append(f"{where}: {sizes[-1]} lines")
    cycles = import_cycles(trees)
    yield Figure("src/aureole: lines", lines_of(paths), 30_000)
    yield Figure("src/aureole: files", len(paths), 150)
    yield Figure("lines of a function, median", median(sizes), 10)
    yield Figure("lines of the longest function", max(sizes), MAX_FUNCTION, tuple(long))
    yield Figure("parameters of a function, most", most, MAX_PARAMETERS, tuple(wide))
    yield Figure("import cycles", len(cycles), 0, tuple(cycles))


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the library."""
    parts = list(path.relative_to(ROOT / "src").with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def face_figures(paths: list[Path]) -> Iterator[Figure]:
    """Yield the figures of what a user sees: names, commands, extras, dependencies."""
    packages = sorted(
        {
            module_name(path)
            for path in paths
            if path.name == "__init__.py" and path.parent.name not in ("aureole", "cli")
        }
    )
    names = {name for package in packages for name in import_module(package).__all__}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"all", "docs", "test", "dev"}
    yield Figure("public names", len(names), 120)
    yield Figure("dir(au)", len(dir(import_module("aureole"))), 35)
    every = commands()
    yield Figure("commands with subcommands", len(every), 18, tuple(every))
    yield Figure("extras", len(extras), 10)
    yield Figure("dependencies without extras", len(project["dependencies"]), 7)


def commands() -> list[str]:
    """Return the commands of the library; ``reproduce`` comes from another distribution."""
    from typer.main import get_command

    from aureole.cli._app import app

    def leaves(command: Any, words: str) -> Iterator[str]:
        if not hasattr(command, "list_commands"):
            yield words
            return
        for name in command.list_commands(None):
            if name != "reproduce":
                yield from leaves(command.get_command(None, name), f"{words} {name}")

    return list(leaves(get_command(app), "aureole"))


def size_figures() -> Iterator[Figure]:
    """Yield the sizes of everything around the library."""
    yield Figure("tests: lines", lines_of(tracked("tests/*.py")), 24_000)
    yield Figure("benchmarks: lines", lines_of(tracked("benchmarks/*.py")), 2_500)
    yield Figure("docs/_ext, tools: lines", lines_of(tracked("docs/_ext/*.py", "tools/*.py")), 1500)
    yield Figure("web/src: lines", lines_of(tracked("web/src/*")), 5_500)
    yield Figure("paper/src: lines", lines_of(tracked("paper/src/*.py")))
    yield Figure("docs: words", words_of(tracked("docs/*.md")))
    yield Figure("README: words", words_of(tracked("README.md")))


def main() -> int:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description="Sizes of the project against their budgets.")
    parser.add_argument("--list", action="store_true", help="Name what is over a limit.")
    options = parser.parse_args()
    paths = tracked(f"{PACKAGE}/*.py")
    figures = [*code_figures(paths), *face_figures(paths), *size_figures()]
    for figure in figures:
        budget = f"at most {figure.budget:,}" if figure.budget is not None else ""
        mark = "!" if figure.is_over else " "
        print(f"{mark} {figure.name:32}{figure.value:>10,.0f}   {budget}".rstrip())
        if options.list:
            print(*(f"      {place}" for place in figure.places), sep="\n")
    over = [figure.name for figure in figures if figure.is_over]
    print(f"over budget: {', '.join(over)}" if over else "every budget holds")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
