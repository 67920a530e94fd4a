"""Shapes and types of every annotated function are checked while the tests run; global state is guarded."""

import os
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from jaxtyping import install_import_hook

with install_import_hook("aureole", "beartype.beartype"):
    import aureole
    import aureole.caps
    import aureole.cli
    import aureole.data
    import aureole.embed
    import aureole.engines._faiss
    import aureole.engines._integrity
    import aureole.engines._lance
    import aureole.engines._postgres
    import aureole.evaluation
    import aureole.explorer
    import aureole.match
    import aureole.records
    import aureole.serve
    import aureole.training

    for module in iter_modules(aureole.cli.__path__, "aureole.cli."):
        import_module(module.name)

import torch
from hypothesis import settings

assert aureole

# how long an example takes on a busy machine is no property of the code
settings.register_profile("aureole", deadline=None)
settings.load_profile("aureole")


@pytest.fixture(autouse=True)
def _global_state_stays():
    """Fail a test that changes torch's global state, and start each from the same seed."""
    torch.manual_seed(0)
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    validate = torch.distributions.Distribution._validate_args
    yield
    assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    assert validate == torch.distributions.Distribution._validate_args


_ERRORS: dict[tuple[str, int, str], float] = {}


@pytest.fixture
def accuracy():
    """Keeps the worst error per (function, dimension, dtype) for the accuracy table of the docs."""

    def keep(name, entry, dtype, error):
        key = (name, entry["dim"], str(dtype).removeprefix("torch."))
        _ERRORS[key] = max(_ERRORS.get(key, 0.0), error)

    return keep


def pytest_addoption(parser):
    parser.addoption("--write-accuracy", help="write the worst errors as a record to this file")
    parser.addoption("--sweeps", action="store_true", help="run every case of every test")
    parser.addoption("--quick", action="store_true", help="run one case of every test")
    parser.addoption(
        "--rotation", type=int, default=0, help="number of the run: which cases are left out"
    )


def pytest_collection_modifyitems(config, items):
    """Leave out tests marked ``sweep``, and three of four cases of a test that has more than six, unless --sweeps.

    Which cases run depends on ``--rotation``: four runs with consecutive numbers run them all. With --quick, one case
    of each test runs. Pages of the docs, tests named on the command line and the accuracy table are always complete.
    """
    if config.getoption("--sweeps") or config.getoption("--write-accuracy"):
        return
    if any("::" in argument for argument in config.args):
        return
    rotation = config.getoption("--rotation")
    cases: dict[str, int] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        cases[name] = cases.get(name, 0) + 1
    seen: dict[str, int] = {}
    left_out = set()
    for item in items:
        name = item.nodeid.partition("[")[0]
        place = seen[name] = seen.get(name, -1) + 1
        sampled = cases[name] > 6 and (place + rotation) % 4 and not name.startswith("tests/docs/")
        if config.getoption("--quick"):
            sampled = place != rotation % cases[name]
        if sampled or item.get_closest_marker("sweep"):
            left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session):
    path = session.config.getoption("--write-accuracy")
    if not path or not _ERRORS:
        return
    metrics: dict = {}
    for (name, dim, dtype), error in sorted(_ERRORS.items()):
        metrics.setdefault(name, {}).setdefault(dtype, {})[str(dim)] = error
    command = f"pytest tests/sphere/test_accuracy.py -p no:xdist --write-accuracy {path}"
    aureole.records.write_record(
        aureole.records.Record("sphere-accuracy", metrics, command=command), path
    )


@pytest.fixture(scope="session")
def shared_data():
    """The folder with the real data; tests of it are skipped where there is none."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AUREOLE_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} does not exist; set AUREOLE_DATA to its folder")
    return folder
