"""Size and shape of the code: file and function lengths, parameters, public names, import cycles.

``python tools/stats.py src/aureole paper/src`` prints one column per folder and marks every figure over its target
with ``!``. ``--list`` names the places that are over; ``--check`` exits with 1 if there are any.

Definitions
-----------
- Function length: from ``def`` to the last line, without the docstring. Nested functions count on their own, too.
- Parameters: all of them, ``*args`` and ``**kwargs`` once each, without ``self`` and ``cls``.
- Public names: ``__all__`` of every module whose dotted path has no part that starts with ``_``. A module without
  ``__all__`` exports the functions and classes it defines that do not start with ``_``.
- Import cycles: strongly connected components of the graph of imports, those inside functions included and those
  under ``if TYPE_CHECKING`` left out.
"""

import argparse
import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

MAX_FUNCTION, MAX_PARAMETERS = 80, 8
MEDIAN_FILE = (120, 250)
MAX_FILES = {"src/aureole": 150}
MAX_LINES = {"src/aureole": 26_000, "paper/src": 9_000}
MAX_NAMES = {"src/aureole": 250}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A parsed source file."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_public(self) -> bool:
        return not any(part.startswith("_") for part in self.name.split("."))


@dataclass(frozen=True)
class Place:
    """A measured function: its size and where it is."""

    size: int
    where: str

    def __str__(self) -> str:
        return f"{self.size:6,}  {self.where}"


@dataclass
class Report:
    """The figures of one folder."""

    folder: str
    files: list[Place] = field(default_factory=list)
    functions: list[Place] = field(default_factory=list)
    documented: list[Place] = field(default_factory=list)
    parameters: list[Place] = field(default_factory=list)
    package_names: int = 0
    leaf_names: list[Place] = field(default_factory=list)
    cycles: list[list[str]] = field(default_factory=list)

    @property
    def lines(self) -> int:
        return sum(place.size for place in self.files)

    @property
    def names(self) -> int:
        return self.package_names + sum(place.size for place in self.leaf_names)


def read_modules(folder: Path) -> dict[str, Module]:
    """The modules below a package, or below a folder of packages, by dotted name."""
    base = folder.parent if (folder / "__init__.py").exists() else folder
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = list(path.relative_to(base).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts)
        modules[name] = Module(name, path, ast.parse(text, str(path)), len(text.splitlines()))
    return modules


def measure(folder: Path) -> Report:
    """All figures of the code below a folder."""
    modules = read_modules(folder)
    report = Report(folder.as_posix())
    for module in modules.values():
        report.files.append(Place(module.lines, str(module.path)))
        for name, function in functions(module.tree):
            where = f"{module.path}:{function.lineno} {name}"
            whole = function.end_lineno - function.lineno + 1
            report.functions.append(Place(whole - docstring_lines(function), where))
            report.documented.append(Place(whole, where))
            report.parameters.append(Place(parameter_count(name, function), where))
        if module.is_public:
            exported = len(public_names(module))
            if module.is_package or module.name.count(".") == 1:
                report.package_names += exported
            elif exported:
                report.leaf_names.append(Place(exported, str(module.path)))
    report.cycles = cycles(import_graph(modules))
    return report


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function and method with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def docstring_lines(function: Function) -> int:
    """Lines of a function's docstring; 0 without one."""
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return 0
    return first.end_lineno - first.lineno + 1


def parameter_count(name: str, function: Function) -> int:
    """Parameters of a function, without ``self`` and ``cls``."""
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
    bound = "." in name and bool(named) and named[0].arg in ("self", "cls", "mcs")
    return len(named) - bound + (signature.vararg is not None) + (signature.kwarg is not None)


def public_names(module: Module) -> list[str]:
    """The names that a module exports."""
    assigned: dict[str, ast.expr] = {}
    names: list[str] | None = None
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    assigned[target.id] = node.value
                    if target.id == "__all__":
                        names = strings(node.value, assigned, module)
        elif isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == "__all__":
            names = [*(names or []), *strings(node.value, assigned, module)]
    if names is None:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        names = [node.name for node in module.tree.body if isinstance(node, kinds)]
        names = [name for name in names if not name.startswith("_")]
    return sorted(set(names))


def strings(node: ast.expr, assigned: dict[str, ast.expr], module: Module) -> list[str]:
    """The strings of an expression such as ``[*_LAZY, "fit"]``, where ``_LAZY`` is a constant of the module."""

    def resolve(child: ast.expr) -> list[str]:
        match child:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [text for item in items for text in resolve(item)]
            case ast.Dict(keys=keys):
                return [text for key in keys if key is not None for text in resolve(key)]
            case ast.Starred(value=value):
                return resolve(value)
            case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
                return resolve(left) + resolve(right)
            case ast.Name(id=name) if name in assigned:
                return resolve(assigned[name])
            case ast.Call(func=ast.Name(id="list" | "sorted" | "tuple" | "set"), args=[value]):
                return resolve(value)
            case ast.Call(func=ast.Attribute(value=value, attr="keys"), args=[]):
                return resolve(value)
        raise SystemExit(f"error: cannot read __all__ at {module.path}:{child.lineno}")

    return resolve(node)


def import_graph(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Which modules of the folder each one imports, anywhere in its text."""
    return {
        name: {target for target in imports(module, modules) if target != name}
        for name, module in modules.items()
    }


def imports(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    """The modules of the folder that a module imports."""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    for node in runtime_nodes(module.tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name in modules)
            case ast.ImportFrom(module=source, names=names, level=level):
                base = source or ""
                if level:
                    parts = package.split(".")
                    base = ".".join([*parts[: len(parts) - level + 1], *filter(None, [source])])
                for alias in names:
                    inner = f"{base}.{alias.name}"
                    if inner in modules:
                        yield inner
                    elif base in modules:
                        yield base
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(target)), *_],
            ) if target in modules:
                yield target


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield other
                yield from runtime_nodes(other)
            continue
        yield node
        yield from runtime_nodes(node)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                components.append(sorted(stack[start:]))
            del stack[start:]

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


def percentile(places: list[Place], share: float) -> int:
    """The size that a share of the places does not exceed (nearest rank)."""
    sizes = sorted(place.size for place in places)
    return sizes[max(0, -(-len(sizes) * int(100 * share) // 100) - 1)] if sizes else 0


def middle(places: list[Place]) -> int:
    """The median size, rounded down."""
    return int(median(place.size for place in places)) if places else 0


def largest(places: list[Place]) -> int:
    """The largest size; 0 without any."""
    return max((place.size for place in places), default=0)


Bound = int | tuple[int, int]  # a maximum, or a range
Row = tuple[str, Callable[[Report], int], Bound | dict[str, int] | None]
ROWS: list[Row] = [
    ("files", lambda report: len(report.files), MAX_FILES),
    ("lines", lambda report: report.lines, MAX_LINES),
    ("file length, median", lambda report: middle(report.files), MEDIAN_FILE),
    ("file length, p90", lambda report: percentile(report.files, 0.9), None),
    ("longest file", lambda report: largest(report.files), None),
    ("function length, median", lambda report: middle(report.functions), None),
    ("function length, p90", lambda report: percentile(report.functions, 0.9), None),
    ("longest function", lambda report: largest(report.functions), MAX_FUNCTION),
    ("  with its docstring", lambda report: largest(report.documented), None),
    ("most parameters", lambda report: largest(report.parameters), MAX_PARAMETERS),
    ("public names", lambda report: report.names, MAX_NAMES),
    ("  in leaf modules", lambda report: report.names - report.package_names, None),
    ("import cycles", lambda report: len(report.cycles), 0),
]


def is_over(value: int, target: Bound | None) -> bool:
    """Whether a figure misses its target."""
    if target is None:
        return False
    return not target[0] <= value <= target[1] if isinstance(target, tuple) else value > target


def print_table(reports: list[Report]) -> bool:
    """Print one column per folder, and return whether every target is met."""
    widths = [max(18, len(report.folder) + 10) for report in reports]
    head = [f"{report.folder:>{width}}" for report, width in zip(reports, widths, strict=True)]
    print(f"{'':24}" + "".join(head))
    met = True
    for label, value_of, bound in ROWS:
        cells = []
        for report, width in zip(reports, widths, strict=True):
            value = value_of(report)
            target = bound.get(report.folder) if isinstance(bound, dict) else bound
            over = is_over(value, target)
            met = met and not over
            text = f"{'! ' if over else ''}{value:,}"
            if target is not None:
                shown = "-".join(map(str, target)) if isinstance(target, tuple) else f"{target:,}"
                text += f" / {shown}"
            cells.append(f"{text:>{width}}")
        print(f"{label:24}" + "".join(cells))
    print("value / target; ! marks a value over its target")
    return met


def print_places(report: Report) -> None:
    """Name every place that is over a target."""
    groups = [
        (f"functions over {MAX_FUNCTION} lines", report.functions, MAX_FUNCTION),
        (
            f"functions with more than {MAX_PARAMETERS} parameters",
            report.parameters,
            MAX_PARAMETERS,
        ),
        ("public names in leaf modules", report.leaf_names, 0),
    ]
    for title, places, limit in groups:
        over = sorted((place for place in places if place.size > limit), key=lambda p: -p.size)
        if over:
            print(f"\n{report.folder}: {title} ({len(over)})")
            print(*over, sep="\n")
    for component in report.cycles:
        print(f"\n{report.folder}: import cycle of {len(component)} modules")
        print("  " + ", ".join(component))


def main() -> int:
    """Print the table for the folders given."""
    parser = argparse.ArgumentParser(description="Size and shape of the code.")
    parser.add_argument(
        "folders", nargs="*", type=Path, default=[Path("src/aureole"), Path("paper/src")]
    )
    parser.add_argument(
        "--list", action="store_true", help="Name the places that are over a target."
    )
    parser.add_argument("--check", action="store_true", help="Exit with 1 if a target is missed.")
    options = parser.parse_args()
    reports = [measure(folder) for folder in options.folders if folder.is_dir()]
    met = print_table(reports)
    if options.list:
        for report in reports:
            print_places(report)
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
