"""``aureole doctor``: versions, hardware and optional packages of this machine, and a check of the numerics."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from itertools import groupby
from typing import Any

import typer
from packaging.requirements import Requirement

import aureole as au
from aureole.cli._lazy import rich, saving, torch
from aureole.cli._options import AsJson
from aureole.cli._output import print_json, print_text

HELP = """Check this machine and installation: versions, cores, optional packages, numerics.

The exit status is 0 if the numerics are correct, even if optional packages are missing, else 1.

Examples:

    aureole doctor
    aureole doctor --json
"""
_DEVELOPMENT = {"all", "dev", "docs", "test"}  # extras that are not features


def check_numerics() -> list[dict[str, Any]]:
    """Compare a few values with constants computed to many digits, and the mean of samples with its expectation."""
    sphere = au.sphere
    cosine, ten, sixteen, twenty, hundred = torch.tensor([9, 100, 160, 200, 1000]).double() / 10
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        along = au.VonMisesFisher(torch.eye(8).double()[0], twenty).sample((20_000,))[:, 0]
    positivity = sphere.log_positivity(cosine, sixteen, hundred, 20.0, 10)
    mean, error = sphere.mean_resultant_length(twenty, 8), 5 * along.std() / 20_000**0.5
    checks = {
        "log-normaliser, D = 10": (sphere.log_normalizer(ten, 10), -7.090957108908095, 1e-10),
        "log-normaliser, D = 128": (sphere.log_normalizer(hundred, 128), 95.06146882169764, 1e-10),
        "log positivity, D = 10": (positivity, 4.439028363647464, 1e-8),
        "mean of 20,000 samples": (along.mean(), mean, error),
    }
    return [_check(name, *map(float, values)) for name, values in checks.items()]


def _check(name: str, value: float, wanted: float, tolerance: float) -> dict[str, Any]:
    good = abs(value - wanted) <= tolerance  # False for NaN
    return {"name": name, "value": value, "wanted": wanted, "tolerance": tolerance, "good": good}


def find_packages() -> list[dict[str, Any]]:
    """Return the packages of all extras, from the metadata of the installed distribution; none is imported."""
    about = next(iter(metadata.distributions(name="aureole")), None)  # None in a source tree
    packages = []
    for need in map(Requirement, (about and about.requires) or []):
        extra = str(need.marker).removeprefix("extra == ").strip("\"'")
        version = _version(need.name)
        good = version is not None and need.specifier.contains(version, prereleases=True)
        found = {"name": need.name, "needs": str(need.specifier), "version": version, "good": good}
        if need.marker is not None and extra not in _DEVELOPMENT:
            packages.append({"extra": extra} | found)
    return packages


def _version(name: str) -> str | None:
    return next((each.version for each in metadata.distributions(name=name)), None)


def machine() -> dict[str, Any]:
    """Return versions, processor, threads and GPUs of this machine."""
    return {
        "aureole": au.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "heads": sorted(saving.PACKAGED_HEADS),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def doctor(as_json: AsJson = False) -> None:
    """Check and print; ``HELP`` is the text users see."""
    facts, packages, checks = machine(), find_packages(), check_numerics()
    good = all(check["good"] for check in checks)
    if as_json:
        print_json({"good": good, **facts, "checks": checks, "packages": packages})
    else:
        facts |= {"heads": ", ".join(facts["heads"]), "gpus": ", ".join(facts["gpus"]) or "none"}
        facts |= _by_extra(packages)
        facts |= {c["name"]: f"{c['value']:.10g}{'' if c['good'] else ' is WRONG'}" for c in checks}
        table = rich.table.Table(show_header=False, width=78)
        for name, value in facts.items():
            table.add_row(rich.text.Text(name), rich.text.Text(str(value)))
        rich.console.Console(highlight=False).print(table)
        wrong = "The numerics are wrong: do not use this installation."
        print_text("All is well." if good else wrong)
    if not good:
        raise typer.Exit(1)


def _by_extra(packages: list[dict[str, Any]]) -> dict[str, str]:
    """Return the versions of each extra, and how to install it if one is missing or too old."""
    texts = {}
    for extra, group in groupby(packages, key=lambda package: package["extra"]):
        members = list(group)
        text = ", ".join(f"{p['name']} {p['version'] or 'missing'}" for p in members)
        if not all(package["good"] for package in members):
            text += f"\npip install 'aureole[{extra}]'"
        texts[f"[{extra}]"] = text
    return texts
