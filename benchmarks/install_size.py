"""Disk space of the library and of each extra: the installed files of every package that it brings.

``python -m benchmarks.install_size [--out results/benchmarks/install_size.json]``, in an environment with all extras.
Sizes of torch are those of the installed build; the CUDA build is several times larger. A package that several
extras share counts for each of them.
"""

import argparse
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from aureole.records import Record, write_record

NAME = "aureole"


def required(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements of an installed distribution with these extras that apply on this machine."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        wanted = [{"extra": extra} for extra in extras] or [{"extra": ""}]
        marker = requirement.marker
        if marker is None or any(marker.evaluate(each) for each in wanted):
            yield requirement


def closure(name: str, extras: frozenset[str]) -> tuple[set[str], set[str]]:
    """(The installed packages that a distribution brings, the required ones that are not installed)."""
    seen: set[tuple[str, frozenset[str]]] = set()
    found: set[str] = set()
    missing: set[str] = set()
    todo = [(canonicalize_name(name), extras)]
    while todo:
        entry = todo.pop()
        if entry in seen:
            continue
        seen.add(entry)
        try:
            needs = list(required(*entry))
        except PackageNotFoundError:
            missing.add(entry[0])
            continue
        found.add(entry[0])
        todo += [(canonicalize_name(each.name), frozenset(each.extras)) for each in needs]
    return found, missing


def megabytes(package: Distribution) -> float:
    """The size of the installed files of a distribution, without compiled byte code."""
    files = [str(file.locate()) for file in package.files or [] if file.suffix != ".pyc"]
    return sum(Path(file).stat().st_size for file in files if Path(file).is_file()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/install_size.json"))
    arguments = parser.parse_args()
    extras = set(distribution(NAME).metadata.get_all("Provides-Extra") or []) - {
        "dev",
        "test",
        "docs",
    }
    base, _ = closure(NAME, frozenset())
    sizes = {name: megabytes(distribution(name)) for name in base - {NAME}}
    metrics: dict[str, object] = {
        "base": {
            "packages": len(base) - 1,
            "MB": sum(sizes.values()),
            "MB of torch": sizes["torch"],
        }
    }
    for extra in sorted(extras):
        found, missing = closure(NAME, frozenset({extra}))
        own = {name: megabytes(distribution(name)) for name in found - base}
        if missing:
            print(f"{extra:14s} not complete here: {', '.join(sorted(missing))}")
            continue
        metrics[extra] = {"packages": len(own), "MB": sum(own.values())}
    for extra, values in metrics.items():
        print(f"{extra:14s} {values}")
    record = Record("install-size", metrics, command="python -m benchmarks.install_size")
    write_record(record, arguments.out)


if __name__ == "__main__":
    main()
