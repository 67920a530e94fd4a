"""Write the pages of the API reference when the docs are built: one per package, from ``__all__`` and docstrings."""

import importlib
import inspect
import pkgutil
from pathlib import Path

TOP = "aureole"
MODULES = ("records", "errors")  # public modules that are no packages


def packages() -> list[str]:
    """Return the public packages and modules of the library, in alphabetical order."""
    top = importlib.import_module(TOP)
    found = [m.name for m in pkgutil.iter_modules(top.__path__) if m.ispkg and m.name != "cli"]
    return sorted([*found, *MODULES])


def public(name: str) -> list[tuple[str, object]]:
    """Return the public classes and functions of a module, without constants."""
    module = importlib.import_module(name)
    things = [(n, getattr(module, n)) for n in module.__all__ if not n.startswith("__")]
    return [(n, t) for n, t in things if inspect.isclass(t) or inspect.isroutine(t)]


def first_line(thing: object) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def page(package: str) -> str:
    """Return the page of a package."""
    name = f"{TOP}.{package}"
    things = public(name)
    lines = [".. autosummary::", "   :nosignatures:", ""]
    lines += [f"   {name}.{n}" for n, _ in things] + [""]
    for n, thing in things:
        if inspect.isclass(thing):
            bases = [] if thing.__bases__ == (object,) else ["   :show-inheritance:"]
            lines += [f".. autoclass:: {name}.{n}", "   :members:", *bases, ""]
        else:
            lines += [f".. autofunction:: {name}.{n}", ""]
    about = inspect.getdoc(importlib.import_module(name)) or ""
    return "\n".join([f"# {name}", "", about, "", "```{eval-rst}", *lines, "```", ""])


def index() -> str:
    """Return the table of contents, with the names of ``import aureole as au``."""
    rows = [f"| `au.{name}` | {first_line(thing)} |" for name, thing in public(TOP)]
    head = [
        "# The API",
        "",
        "The names of `import aureole as au`; the pages below document every package.",
        "",
    ]
    tree = ["", "```{toctree}", ":maxdepth: 1", "", *packages(), "```", ""]
    return "\n".join([*head, "| name | description |", "|---|---|", *rows, *tree])


def write(app) -> None:
    """Write the pages into ``reference/``, which git ignores; unchanged ones keep their time."""
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    pages = {"index": index(), **{name: page(name) for name in packages()}}
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):
    """Register with Sphinx."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
