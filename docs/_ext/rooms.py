"""The API reference: every public name of a room, from its docstring.

``.. room:: aureole.sphere`` documents a room, ``.. public-names::`` lists what ``import aureole`` gives.
"""

import importlib
import inspect

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from record_tables import table

TOP = "aureole"
ROOMS = (
    "sphere", "distributions", "losses", "models", "data", "training", "evaluation", "retrieval", "scale", "serve",
    "explorer",
)  # fmt: skip


def public(name):
    """(name, object) of each public class and function of a module; constants are for the library itself."""
    module = importlib.import_module(name)
    found = [(n, getattr(module, n)) for n in module.__all__ if not n.startswith("__")]
    return [(n, thing) for n, thing in found if inspect.isclass(thing) or inspect.isroutine(thing)]


def first_line(thing):
    """What the docstring says first, in one line."""
    text = inspect.getdoc(thing) if inspect.isclass(thing) or callable(thing) else None
    return " ".join((text or "").split("\n\n")[0].split())


def auto(path, thing):
    """The lines that document one thing under this path."""
    if inspect.isclass(thing):
        bases = [] if thing.__bases__ == (object,) else ["   :show-inheritance:"]
        return [f".. autoclass:: {path}", "   :members:", *bases, ""]
    return [f".. autofunction:: {path}", ""]


def room_lines(name, modules):
    """A room as reStructuredText: what is exported, by the file it is from, then the modules that are named."""
    lines, by_file = [], {}
    if name:
        for n, thing in public(name):
            by_file.setdefault(getattr(thing, "__module__", name), []).append((n, thing))
    if by_file:
        paths = [f"   {name}.{n}" for things in by_file.values() for n, _ in things]
        lines += [".. autosummary::", "   :nosignatures:", "", *paths, ""]
    for file, things in by_file.items():
        if file.startswith(TOP):
            # what the file says of itself: formulas, ranges, accuracy
            lines += [f".. automodule:: {file}", "   :no-index:", ""]
        for n, thing in things:
            lines += auto(f"{name}.{n}", thing)
    shown = {f"{file}.{n}" for file, things in by_file.items() for n, _ in things}
    for module in modules:
        if module not in by_file:
            lines += [f".. automodule:: {module}", ""]
        for n, thing in public(module):
            if f"{module}.{n}" not in shown:
                lines += auto(f"{module}.{n}", thing)
    return lines


class Written(Directive):
    """A directive whose content is lines of reStructuredText."""

    def run(self):
        """The parsed content."""
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(self.lines(), source=self.name), 0, node)
        return node.children


class Room(Written):
    """A room's public names; the lines of its content name further modules."""

    optional_arguments = 1
    has_content = True

    def lines(self):
        """The room, then the modules."""
        name = self.arguments[0] if self.arguments else None
        return room_lines(name, [line.strip() for line in self.content if line.strip()])


class PublicNames(Written):
    """What ``import aureole as au`` gives, each with a link to its room."""

    def lines(self):
        """One table."""
        rows = []
        for name, thing in public(TOP):
            room = ".".join(thing.__module__.split(".")[:2])
            path = f"{room}.{name}"
            if not hasattr(importlib.import_module(room), name):
                path = f"{thing.__module__}.{name}"
            rows.append([f":py:obj:`au.{name} <{path}>`", first_line(thing)])
        return table(["name", "what it is"], rows)


def setup(app):
    app.add_directive("room", Room)
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
