"""``aureole doctor``: what is here, what is missing and how to get it, and whether the numbers come out right."""

import os
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aureole.cli._checkup import (
    EXTRAS,
    Check,
    Package,
    check_numerics,
    find_data,
    find_packages,
    hints,
    machine,
    plain,
)
from aureole.cli._options import AsJson
from aureole.cli._results import print_json

HELP = """Look at this machine and installation: versions, cores, memory, optional packages, data, a check of numbers.

Nothing is changed. The exit status is 0 if the numbers come out right, whatever is missing, and else 1.

Examples:

    aureole doctor
    aureole doctor --json
"""
_GOOD, _BAD, _ABSENT = "[green]✓[/green]", "[red]✗[/red]", "[dim]-[/dim]"


def doctor(as_json: AsJson = False) -> None:
    """Look and print; ``HELP`` is what users read."""
    found, packages, checks = machine(), find_packages(), check_numerics()
    data, advice = find_data(os.environ.get("AUREOLE_DATA")), hints(found)
    good = all(check.good for check in checks)
    if as_json:
        facts = {"good": good, **found, "hints": advice, "data": data}
        print_json(facts | plain(checks, packages))
    else:
        console = Console(highlight=False)
        console.print(_about(found))
        console.print(_extras(packages))
        console.print(_data(data))
        console.print(_checks(checks))
        for hint in advice:
            console.print(f"[yellow]hint:[/yellow] {escape(hint)}")
        console.print(
            "All is well."
            if good
            else "[red]The numbers are wrong: do not use this installation.[/red]"
        )
    if not good:
        raise typer.Exit(1)


def _sheet(title: str, *widths: int) -> Table:
    """An empty table of 80 columns at most."""
    table = Table(title=title, title_justify="left", show_header=False, width=78)
    for width in widths:
        table.add_column(width=width, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    return table


def _about(found: dict[str, Any]) -> Table:
    table = _sheet("this machine", 10)
    memory = found["memory"]
    free = "" if memory["free"] is None else f", {memory['free'] / 2**30:.1f} GiB free"
    total = "unknown" if memory["total"] is None else f"{memory['total'] / 2**30:.1f} GiB{free}"
    pays = "pays" if found["bfloat16"] else "does not pay"
    asked = found["omp_num_threads"]
    rows = {
        "versions": f"aureole {found['aureole']}, Python {found['python']}, torch {found['torch']}, "
        f"numpy {found['numpy']}",
        "processor": f"{found['processor']}, {found['system']}",
        "features": f"{', '.join(found['features']) or 'none known'}; torch uses {found['capability']}; "
        f"bfloat16 {pays}",
        "cores": f"{found['cores']} usable, {found['threads']} thread{'s' if found['threads'] != 1 else ''} "
        f"(OMP_NUM_THREADS {'is not set' if asked is None else '= ' + asked})",
        "memory": total,
        "GPU": ", ".join(found["gpus"]) or "none; the CPU is enough for all examples",
    }
    for name, text in rows.items():
        table.add_row(name, escape(text))
    return table


def _extras(packages: list[Package]) -> Table:
    table = _sheet("optional packages", 10)
    for extra in EXTRAS:
        of = [package for package in packages if package.extra == extra]
        lines = [_package(package) for package in of]
        text = "  ".join(lines)
        if not all(package.good for package in of):
            line = escape(f"pip install 'aureole[{extra}]'")
            text += f"\n[yellow]{line}[/yellow]"
        table.add_row(extra, text)
    return table


def _package(package: Package) -> str:
    name = escape(package.name)
    if package.version is None:
        return f"{_ABSENT} [dim]{name}[/dim]"
    if not package.good:
        return f"{_BAD} {name} {escape(package.version)} (needs {package.least})"
    return f"{_GOOD} {name} {escape(package.version)}"


def _data(data: dict[str, Any]) -> Table:
    table = _sheet("data", 10)
    if data["folder"] is None:
        where = "AUREOLE_DATA is not set; aureole quickstart needs no data"
    else:
        where = f"{data['folder']}{'' if data['found'] else ' (from AUREOLE_DATA) is no folder'}"
    table.add_row("folder", escape(where))
    if data["found"]:
        sets = [f"{_GOOD if there else _ABSENT} {name}" for name, there in data["sets"].items()]
        table.add_row("sets", "  ".join(sets))
    return table


def _checks(checks: list[Check]) -> Table:
    table = _sheet("the numbers", 2, 26)
    for check in checks:
        table.add_row(
            _GOOD if check.good else _BAD,
            check.name,
            f"{check.value:.10g}, wanted {check.wanted:.10g} ± {check.tolerance:.0e}",
        )
    return table
