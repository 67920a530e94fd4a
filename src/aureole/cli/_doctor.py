"""``aureole doctor``: versions, hardware, optional packages and data of this machine, and a check of numerics."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from packaging.requirements import Requirement
from packaging.version import Version

import aureole as au
from aureole.cli._lazy import rich, torch
from aureole.cli._options import AsJson
from aureole.cli._output import print_json

HELP = """Check this machine and installation: versions, cores, memory, optional packages, data, numerics.

Changes nothing. The exit status is 0 if the numerics are correct, even if optional packages are missing, else 1.

Examples:

    aureole doctor
    aureole doctor --json
"""
_GOOD, _BAD, _ABSENT = "[green]✓[/green]", "[red]✗[/red]", "[dim]-[/dim]"
_DEVELOPMENT = {"all", "dev", "docs", "test"}  # extras that are not features
DATA: Mapping[str, tuple[str, ...]] = {
    "CIFAR-10": ("cifar10/test_batch.webp", "cifar10/labels.npz"),
    "CIFAR-10H": ("cifar10_human/cifar10h-counts.npy", "cifar10h_folds/idx_set_0.csv"),
    "CIFAR-10 classifiers": ("weights/cifar10_resnet20.safetensors",),
    "Multi30k captions": ("text/multi30k_train.1.en.gz",),
    "AmbiEnt": ("text/ambient_full.jsonl.gz",),
    "ChaosNLI": ("text/chaosNLI_snli.jsonl.gz",),
    "STS-B": ("text/stsb_test.tsv.gz",),
}
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


@dataclass(frozen=True)
class Package:
    """An optional package: the extra it belongs to, the installed version if any, and the minimum version."""

    extra: str
    name: str
    version: str | None
    least: str

    @property
    def good(self) -> bool:
        """Whether it is installed and new enough."""
        if self.version is None:
            return False
        return Version(self.version).release >= Version(self.least or "0").release


@dataclass(frozen=True)
class Check:
    """A computed number, its correct value, and the tolerance."""

    name: str
    value: float
    wanted: float
    tolerance: float

    @property
    def good(self) -> bool:
        """Whether it is within the tolerance; NaN is not."""
        return abs(self.value - self.wanted) <= self.tolerance


def check_numerics() -> list[Check]:
    """Compare a few values with constants computed to many digits, and the mean of samples with its expectation."""
    numbers = torch.tensor([0.9, 10.0, 16.0, 20.0, 100.0], dtype=torch.float64)
    cosine, ten, sixteen, twenty, hundred = numbers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mu = torch.eye(8, dtype=torch.float64)[0]
        along = au.VonMisesFisher(mu, twenty).sample((20_000,))[:, 0]
    positivity = au.sphere.log_positivity(cosine, sixteen, hundred, 20.0, 10)
    mean, error = au.sphere.mean_resultant_length(twenty, 8), 5 * along.std() / 20_000**0.5
    checks = {
        "log-normaliser, D = 10": (au.sphere.log_normalizer(ten, 10), -7.090957108908095, 1e-10),
        "log-normaliser, D = 128": (
            au.sphere.log_normalizer(hundred, 128),
            95.06146882169764,
            1e-10,
        ),
        "log positivity, D = 10": (positivity, 4.439028363647464, 1e-8),
        "mean of 20,000 samples": (along.mean(), mean, error),
    }
    return [Check(name, *map(float, values)) for name, values in checks.items()]


def find_packages() -> list[Package]:
    """The packages of all extras, from the metadata of the installed distribution; none is imported."""
    try:
        extras = metadata.metadata("aureole").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return []
    requirements = [Requirement(line) for line in metadata.requires("aureole") or []]
    return [
        Package(extra, need.name, _version(need.name), str(need.specifier).removeprefix(">="))
        for extra in extras
        if extra not in _DEVELOPMENT
        for need in requirements
        if need.marker is not None and need.marker.evaluate({"extra": extra})
    ]


def find_data(named: str | None) -> dict[str, Any]:
    """The folder named by AUREOLE_DATA, and whether each data set's files exist in it."""
    folder = Path(named) if named else None
    sets = {
        name: folder is not None and all((folder / file).is_file() for file in files)
        for name, files in DATA.items()
    }
    exists = folder is not None and folder.is_dir()
    return {"folder": named or None, "found": exists, "sets": sets}


def machine() -> dict[str, Any]:
    """Versions, processor, threads, memory and GPUs of this machine."""
    from aureole.models._networks import bfloat16_in_hardware
    from aureole.models._pretrained import PACKAGED_HEADS

    flags = set(_cpu_field("flags").split())
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    affinity = hasattr(os, "sched_getaffinity")
    return {
        "aureole": au.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _cpu_field("model name") or platform.processor() or "unknown",
        "features": [flag for flag in _FLAGS if flag in flags],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": bfloat16_in_hardware(),
        "cores": len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "memory": _memory(),
        "native": au.sphere.native_instructions(),
        "heads": sorted(PACKAGED_HEADS),
        "gpus": gpus + (["Apple MPS"] if torch.backends.mps.is_available() else []),
    }


def hints(facts: Mapping[str, Any]) -> list[str]:
    """Advice on OMP_NUM_THREADS, from the output of ``machine``."""
    asked, cores = facts["omp_num_threads"], facts["cores"]
    if not asked and cores > 1:
        return [
            f"OMP_NUM_THREADS is not set, so each process uses {facts['threads']} threads: set it if several "
            "processes share this machine."
        ]
    if not asked:
        return []
    if asked.isdigit() and int(asked) > cores:
        return [
            f"OMP_NUM_THREADS is {asked}, but {cores} core{'s are' if cores > 1 else ' is'} usable: "
            f"set it to {cores}{' or less' if cores > 1 else ''}."
        ]
    if not asked.isdigit() or int(asked) == 0:
        return [f"OMP_NUM_THREADS is {asked[:20]!r}, which is not a number of threads."]
    return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory() -> dict[str, int | None]:
    """Total and free memory in bytes; at most the limit of the container."""
    total = free = None
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024 * int(line.split()[1])
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            total = min(total, int(limit))
            free = None if free is None else min(free, total)
    except (OSError, ValueError):
        pass  # not Linux, or no cgroup
    return {"total": total, "free": free}


def _cpu_field(name: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty on other systems."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return ""


_NAME = 12  # columns of the names in tables


def doctor(as_json: AsJson = False) -> None:
    """Check and print; ``HELP`` is the text users see."""
    facts, packages, checks = machine(), find_packages(), check_numerics()
    data, advice = find_data(os.environ.get("AUREOLE_DATA")), hints(facts)
    good = all(check.good for check in checks)
    if as_json:
        result = {"good": good, **facts, "hints": advice, "data": data}
        result["checks"] = [asdict(check) | {"good": check.good} for check in checks]
        result["packages"] = [asdict(package) | {"good": package.good} for package in packages]
        print_json(result)
    else:
        console = rich.console.Console(highlight=False)
        console.print(_table("this machine", _about(facts), _NAME))
        console.print(_table("optional packages", _extras(packages), _NAME))
        console.print(_table("data", _data(data), _NAME))
        console.print(_table("numerics", map(_check_row, checks), 1, 23))
        for hint in advice:
            console.print(f"[yellow]hint:[/yellow] {rich.markup.escape(hint)}")
        wrong = "[red]The numerics are wrong: do not use this installation.[/red]"
        console.print("All is well." if good else wrong)
    if not good:
        raise typer.Exit(1)


def _table(title: str, rows: Iterable[tuple[str, ...]], *widths: int) -> rich.table.Table:
    """A table that fits 80 columns; the last column has the rest of the width."""
    table = rich.table.Table(title=title, title_justify="left", show_header=False, width=78)
    for width in widths:
        table.add_column(width=width, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _about(facts: dict[str, Any]) -> list[tuple[str, str]]:
    memory = facts["memory"]
    free = "" if memory["free"] is None else f", {memory['free'] / 2**30:.1f} GiB free"
    total = "unknown" if memory["total"] is None else f"{memory['total'] / 2**30:.1f} GiB{free}"
    pays = "is fast" if facts["bfloat16"] else "is slow"
    asked = facts["omp_num_threads"]
    rows = {
        "versions": f"aureole {facts['aureole']}, Python {facts['python']}, torch {facts['torch']}, "
        f"numpy {facts['numpy']}",
        "processor": f"{facts['processor']}, {facts['system']}",
        "features": f"{', '.join(facts['features']) or 'none known'}; torch uses {facts['capability']}; "
        f"bfloat16 {pays}",
        "cores": f"{facts['cores']} usable, {facts['threads']} thread{'s' if facts['threads'] != 1 else ''} "
        f"(OMP_NUM_THREADS {'is not set' if asked is None else '= ' + asked})",
        "losses": "plain PyTorch; pip install aureole-native makes them faster"
        if facts["native"] is None
        else f"compiled code of aureole-native, {facts['native']}",
        "memory": total,
        "GPU": ", ".join(facts["gpus"]) or "none; all examples run on the CPU",
        "heads": f"{', '.join(facts['heads'])}: --head NAME, FrozenHead.load(NAME)",
    }
    return [(name, rich.markup.escape(text)) for name, text in rows.items()]


def _extras(packages: list[Package]) -> Iterator[tuple[str, str]]:
    for extra, group in groupby(packages, key=lambda package: package.extra):
        members = list(group)
        text = _lines(map(_package, members))
        if not all(package.good for package in members):
            command = rich.markup.escape(f"pip install 'aureole[{extra}]'")
            text += f"\n[yellow]{command}[/yellow]"
        yield extra, text


def _package(package: Package) -> str:
    name = rich.markup.escape(package.name)
    if package.version is None:
        return f"{_ABSENT} [dim]{name}[/dim]"
    if not package.good:
        return f"{_BAD} {name} {rich.markup.escape(package.version)} (needs {package.least})"
    return f"{_GOOD} {name} {rich.markup.escape(package.version)}"


def _data(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if data["folder"] is None:
        where = "AUREOLE_DATA is not set; aureole quickstart needs no data"
    else:
        where = f"{data['folder']}{'' if data['found'] else ' (from AUREOLE_DATA) does not exist'}"
    yield "folder", rich.markup.escape(where)
    if data["found"]:
        sets = [f"{_GOOD if exists else _ABSENT} {name}" for name, exists in data["sets"].items()]
        yield "sets", _lines(sets)


def _lines(parts: Iterable[str]) -> str:
    """Parts in lines that fit the last column; no part is broken."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}  {part}" if lines else part
        if lines and rich.text.Text.from_markup(longer).cell_len <= 78 - 7 - _NAME:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def _check_row(check: Check) -> tuple[str, str, str]:
    near = "" if check.good else "not "
    result = f"{check.value:.10g}, {near}within {check.tolerance:.0e} of {check.wanted:.10g}"
    return _GOOD if check.good else _BAD, check.name, result
