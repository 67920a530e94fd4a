"""Directives of the API reference: every public name, documented from its docstring.

``.. package:: aureole.sphere`` documents a package, ``.. public-names::`` lists the names of ``import aureole``.
"""

import importlib
import inspect
import sys

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from record_tables import table

TOP = "aureole"
PACKAGES = (
    "sphere", "distributions", "losses", "models", "data", "encoders", "training", "evaluation", "retrieval", "scale",
    "serve", "explorer", "plot",
)  # fmt: skip


def public(name):
    """(name, object) of each public class and function of a module, without constants."""
    module = importlib.import_module(name)
    exported = [(n, getattr(module, n)) for n in module.__all__ if not n.startswith("__")]
    return [
        (n, thing) for n, thing in exported if inspect.isclass(thing) or inspect.isroutine(thing)
    ]


def first_line(thing):
    """The first paragraph of the docstring, in one line."""
    text = inspect.getdoc(thing) if inspect.isclass(thing) or callable(thing) else None
    return " ".join((text or "").split("\n\n")[0].split())


def auto(path, thing):
    """The autodoc directive of one class or function."""
    if inspect.isclass(thing):
        bases = [] if thing.__bases__ == (object,) else ["   :show-inheritance:"]
        return [f".. autoclass:: {path}", "   :members:", *bases, ""]
    return [f".. autofunction:: {path}", ""]


def package_lines(name, modules):
    """A package as reStructuredText: its public names, grouped by module, then those of further modules."""
    lines, by_file = [], {}
    if name:
        for n, thing in public(name):
            by_file.setdefault(getattr(thing, "__module__", name), []).append((n, thing))
    if by_file:
        paths = [f"   {name}.{n}" for things in by_file.values() for n, _ in things]
        lines += [".. autosummary::", "   :nosignatures:", "", *paths, ""]
    for file, things in by_file.items():
        # a docstring of several paragraphs has formulas, ranges or accuracy; a line is for readers of the code
        if file.startswith(TOP) and "\n\n" in (inspect.getdoc(sys.modules[file]) or ""):
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


class GeneratedDirective(Directive):
    """A directive that generates reStructuredText: subclasses define ``lines``."""

    def run(self):
        """The parsed content."""
        node = nodes.section()
        node.document = self.state.document
        self.state.nested_parse(StringList(self.lines(), source=self.name), 0, node)
        return node.children


class Package(GeneratedDirective):
    """The public names of a package; the lines of its content name further modules."""

    optional_arguments = 1
    has_content = True

    def lines(self):
        """The package, then the modules."""
        name = self.arguments[0] if self.arguments else None
        return package_lines(name, [line.strip() for line in self.content if line.strip()])


class PublicNames(GeneratedDirective):
    """The names of ``import aureole as au``, each with a link to its package."""

    def lines(self):
        """One table."""
        rows = []
        for name, thing in public(TOP):
            package = ".".join(thing.__module__.split(".")[:2])
            path = f"{package}.{name}"
            if not hasattr(importlib.import_module(package), name):
                path = f"{thing.__module__}.{name}"
            rows.append([f":py:obj:`au.{name} <{path}>`", first_line(thing)])
        return table(["name", "description"], rows)


def setup(app):
    app.add_directive("package", Package)
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
