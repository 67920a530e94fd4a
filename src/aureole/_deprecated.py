"""Modules, names and parameters of version 0.1 that moved. They work until 0.3, and warn.

``docs/migration.md`` has the complete list, with the names that were removed; a test compares the two.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# the package that now has the names: modules of 0.1, relative to that package unless they start with "aureole."
_MODULES = {
    "data": "blur crops drawn groups pairs processes processes.bimodal processes.families processes.generators "
    "processes.process tables",
    "distributions": "constraint fusion kernels mixture uniform von_mises_fisher",
    "evaluation": "bootstrap calibration ceiling coverage metrics modes ranking ranks recovery rejection sets "
    "aureole.training.diagnostics",
    "explorer": "aureole.reports aureole.reports.head aureole.reports.record_table",
    "losses": "closed_form contrastive elk hedged infonce mcinfonce negatives",
    "models": "adapters backbones card encoders heads hub last_layer networks posterior_encoder views aureole.heads",
    "retrieval": "conformal credible explanation filters hits index origin scores",
    "scale": "embed embedder launch lists sources sweep",
    "serve": "client",
    "sphere": "bessel cosine geometry normalizer positivity predictive",
    "training": "adapters adapters.lightly adapters.metric_learning adapters.sentence_transformers assessment config "
    "fit frozen schedule starts train",
}
# old module: the package with its names
MOVED = {
    module if module.startswith("aureole.") else f"aureole.{package}.{module}": f"aureole.{package}"
    for package, modules in _MODULES.items()
    for module in modules.split()
}
# old module: the module of the distribution aureole-paper
PAPER = {
    "aureole.experiments": "aureole_paper",
    "aureole.data.ambient": "aureole_paper.text_data",
    "aureole.data.captions": "aureole_paper.text_data",
    "aureole.data.chaos_nli": "aureole_paper.text_data",
    "aureole.data.cifar10": "aureole_paper.cifar",
    "aureole.data.cifar10h": "aureole_paper.cifar",
    "aureole.data.download": "aureole_paper.data_folder",
    "aureole.data.folder": "aureole_paper.data_folder",
    "aureole.data.stsb": "aureole_paper.text_data",
    "aureole.models.mobilenet": "aureole_paper.mobilenet",
}


def warn_deprecated(message: str) -> None:
    """Issue a DeprecationWarning at the first caller outside this file."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_back.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DeprecationWarning, stacklevel=level + 1)


class MovedModule(ModuleType):
    """A module of 0.1 without a file: its names come from the package that has them now, with a warning."""

    def __getattr__(self, name: str) -> Any:
        new = MOVED[self.__name__]
        target = import_module(new)
        if name not in target.__all__:
            raise AttributeError(
                f"{self.__name__} has been removed, and {new} has no {name!r}: see docs/migration.md."
            )
        warn_deprecated(
            f"{self.__name__}.{name} is now {new}.{name}; the old name will be removed in 0.3."
        )
        return getattr(target, name)


class _Package(ModuleType):
    """A package whose public names stay when a module of 0.1 with the same name is imported, such as training.fit."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, MovedModule) and name in getattr(self, "__all__", ())):
            super().__setattr__(name, value)


class MovedModules(MetaPathFinder, Loader):
    """Finds the modules of 0.1, after all other finders."""

    def find_spec(
        self,
        fullname: str,
        path: Any,  # noqa: ARG002  # of a namespace package, no Sequence
        target: Any = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of a module of 0.1 that moved within aureole; None for other modules."""
        if fullname in MOVED:
            below = any(name.startswith(f"{fullname}.") for name in MOVED)
            return ModuleSpec(fullname, self, is_package=below)
        if fullname in PAPER:
            raise ModuleNotFoundError(
                f"{fullname} is now {PAPER[fullname]}, of the distribution aureole-paper: install it with "
                "'pip install ./paper' in the repository.",
                name=fullname,
            )
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module; importing it does not replace a public name of its parent."""
        parent = sys.modules[spec.name.rpartition(".")[0]]
        if type(parent) is ModuleType:
            parent.__class__ = _Package
        return MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def moved_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module with renamed members, {old name: new name}."""

    def getattr_moved(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = f"{module}.{names[name]}"
        warn_deprecated(f"{module}.{name} is now {new}; the old name will be removed in 0.3.")
        return getattr(sys.modules[module], names[name])

    return getattr_moved


def adapted(
    change: Callable[[list[Any], dict[str, Any], list[str]], str | None],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that accepts calls of 0.1.

    ``change`` gets the positional arguments, the keywords and the names of the positional parameters; it updates the
    first two if the call is an old one, and then returns how to write it now.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]  # fmt: skip

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            positional: list[Any] = list(args)
            now = change(positional, kwargs, names)
            if now is not None:
                own = function.__name__ == "__init__"
                shown = type(args[0]).__name__ if own else function.__qualname__
                warn_deprecated(f"{shown}: write {now}; the old form will be removed in 0.3.")
            return function(*positional, **kwargs)  # pyright: ignore[reportCallIssue]

        return call

    return decorate


def keyword_only(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for a function of which these parameters could follow the positional ones in 0.1."""

    def change(args: list[Any], kwargs: dict[str, Any], parameters: list[str]) -> str | None:
        given = dict(zip(names, args[len(parameters) :], strict=False))
        if not given or len(args) > len(parameters) + len(names):
            return None
        del args[len(parameters) :]
        kwargs.update(given)
        return ", ".join(f"{name}=..." for name in given)

    return adapted(change)


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for a function with renamed parameters, old="new"."""

    def change(_: list[Any], kwargs: dict[str, Any], __: list[str]) -> str | None:
        old = [name for name in names if name in kwargs and names[name] not in kwargs]
        for name in old:
            kwargs[names[name]] = kwargs.pop(name)
        return ", ".join(f"{names[name]}=... instead of {name}=..." for name in old) or None

    return adapted(change)


def fields_of(
    parameter: str, kind: type, *names: str, first: Callable[[Any], Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for a function whose keywords of 0.1 are now fields of the dataclass that a parameter takes.

    ``first`` converts what the parameter took in 0.1 to the first field of the dataclass.
    """

    def change(args: list[Any], kwargs: dict[str, Any], parameters: list[str]) -> str | None:
        given = {name: kwargs.pop(name) for name in names if name in kwargs}
        if not given:
            return None
        at = parameters.index(parameter) if parameter in parameters else len(args)
        value = args[at] if at < len(args) else kwargs.get(parameter)
        if isinstance(value, kind):
            value = replace(value, **given)  # pyright: ignore[reportArgumentType]
        elif value is None:
            value = kind(**given)
        else:
            value = kind(value if first is None else first(value), **given)
        if at < len(args):
            args[at] = value
        else:
            kwargs[parameter] = value
        before = "" if parameter == "options" else f"{parameter}, "
        written = ", ".join(f"{name}={one!r}" for name, one in given.items())
        return f"{parameter}={kind.__name__}({before}{written})"

    return adapted(change)
