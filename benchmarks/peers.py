"""Von Mises-Fisher distributions of other libraries compared with ours: log normalisers and samples against mpmath.

``python -m benchmarks.peers [--python NAME=PYTHON] [--path NAME=FOLDER] [--out results/benchmarks/peers.json]`` writes
a record. ``--python`` runs a library in a separate interpreter, ``--path`` is the checkout of one that is not
packaged (``S-VAE``: nicola-decao/s-vae-pytorch, ``mcinfonce``: mkirchhof/Probabilistic_Contrastive_Learning). A library
that is not installed is skipped, and the record says so.

For each dimension: the worst relative error of log C_D(kappa) (absolute where it is below 1), over kappa from 0.01 to
1e6, in float64; the number of finite values; and for samples, by how many standard errors their mean cosine differs
from A(kappa).
"""

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import mpmath

from aureole.records import Record, write_record

ROOT = Path(__file__).parents[1]
NAMES = ("aureole", "scipy", "S-VAE", "mcinfonce", "geomstats", "TFP")
DIMS = (2, 3, 10, 64, 128, 512, 2048, 4096)
KAPPAS = (0.01, 1.0, 10.0, 100.0, 1e3, 1e4, 1e6)
DRAW_DIMS = (2, 10, 64, 128, 512, 2048)
DRAW_KAPPAS = (1.0, 16.0, 100.0, 1000.0)
DRAWS = 2000


def exact_log_normalizer(dim, kappa):
    """Log C_D(kappa) at 40 digits."""
    with mpmath.workdps(40):
        order, k = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        log_bessel = mpmath.log(mpmath.besseli(order, k, maxterms=10**7))
        return float(
            order * mpmath.log(k) - mpmath.mpf(dim) / 2 * mpmath.log(2 * mpmath.pi) - log_bessel
        )


def exact_mean_cosine(dim, kappa):
    """A(kappa) at 40 digits."""
    with mpmath.workdps(40):
        order, k = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
        return float(mpmath.besseli(order + 1, k) / mpmath.besseli(order, k))


def values_of(name, python, path):
    """The library's values on the grids; a string if it is not installed."""
    grids = {
        "log normaliser": [(d, k) for d in DIMS for k in KAPPAS],
        "draws": [(d, k) for d in DRAW_DIMS for k in DRAW_KAPPAS],
        "n": DRAWS,
    }
    folders = [str(path)] if path else []
    if python == sys.executable:
        folders += [str(ROOT / "src"), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    command = [python, str(ROOT / "benchmarks" / "peer_values.py"), name]
    done = subprocess.run(
        command, input=json.dumps(grids), capture_output=True, text=True, env=environment
    )
    if done.returncode:
        return f"not measured: {done.stderr.strip().splitlines()[-1][:120]}"
    return json.loads(done.stdout[done.stdout.index("{") :])


def normalizer_errors(values):
    """By dimension: the worst error of finite values, and their number."""
    errors = {}
    for dim in DIMS:
        found = [(k, values[f"{dim} {k:g}"]) for k in KAPPAS]
        given = [(k, v) for k, v in found if isinstance(v, float)]
        worst = 0.0
        for kappa, value in given:
            exact = exact_log_normalizer(dim, kappa)
            worst = max(worst, abs(value - exact) / max(1.0, abs(exact)))
        errors[str(dim)] = {
            "worst error": worst if given else None,
            "finite": len(given),
            "of": len(found),
        }
    return errors


def draw_errors(values):
    """By "D kappa": the mean cosine, the exact one, and their difference in standard errors."""
    errors = {}
    for key, found in values.items():
        dim, kappa = key.split()
        exact = exact_mean_cosine(int(dim), float(kappa))
        if not isinstance(found, dict):
            errors[key] = {"exact": exact, "fault": found or "not finite"}
            continue
        apart = abs(found["mean"] - exact) / max(found["spread"] / math.sqrt(DRAWS), 1e-15)
        errors[key] = {
            "exact": exact, "mean": found["mean"], "standard errors apart": apart, "seconds": found["seconds"]
        }  # fmt: skip
    return errors


def summary(draws):
    """The number of settings within four standard errors, and the worst error of the mean cosine."""
    given = [d for d in draws.values() if "mean" in d]
    return {
        "settings": len(draws),
        "drawn": len(given),
        "within four standard errors": sum(d["standard errors apart"] < 4 for d in given),
        "worst miss of the mean cosine": max(
            (abs(d["mean"] - d["exact"]) for d in given), default=None
        ),
        "seconds at D = 512, kappa = 100": draws["512 100"].get("seconds"),
    }


def save(metrics, versions, out):
    """Write the results so far: one library that hangs must not lose the others."""
    settings = {"kappas": KAPPAS, "dims": DIMS, "draws": DRAWS, "versions": versions}
    command = "python -m benchmarks.peers"
    print(write_record(Record("peers", metrics, command=command, seed=0, settings=settings), out))


def pairs(options):
    return dict(option.split("=", 1) for option in options)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--out", default="results/benchmarks/peers.json")
    arguments = parser.parse_args()
    pythons, paths = pairs(arguments.python), pairs(arguments.path)
    metrics, versions = {}, {}
    for name in NAMES:
        found = values_of(name, pythons.get(name, sys.executable), paths.get(name))
        if isinstance(found, str):
            versions[name] = found
            print(name, found)
            save(metrics, versions, arguments.out)
            continue
        versions[name] = found["version"]
        draws = draw_errors(found["draws"])
        metrics[name] = {"draws": draws, "sampler": summary(draws)}
        if "log normaliser" in found:
            metrics[name]["log normaliser"] = normalizer_errors(found["log normaliser"])
        print(
            name,
            found["version"],
            metrics[name].get("log normaliser"),
            metrics[name]["sampler"],
            sep="\n  ",
        )
        save(metrics, versions, arguments.out)


if __name__ == "__main__":
    main()
