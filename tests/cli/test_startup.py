"""Help, errors and completion import no torch and no numpy, and take little CPU."""

import json
import os
import subprocess
import sys

import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex

from .test_help import COMMANDS

HEAVY = {"torch", "numpy", "safetensors", "jaxtyping", "pyarrow", "matplotlib"}
# runs commands in one interpreter; prints what each has imported, and the CPU seconds of the process
PROGRAM = """
import contextlib, io, json, sys, time
from aureole.cli import main
imported = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["aureole", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            status = end.code
    imported.append([status, sorted({name.partition(".")[0] for name in sys.modules})])
print(json.dumps([imported, time.process_time()]))
"""


def started(*commands, **environment):
    """([(status, imported packages) of each command], CPU seconds)."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True, text=True, check=True, env=os.environ | environment,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_the_help_of_every_command_imports_nothing_heavy():
    asked = [[*path, "--help"] for path in COMMANDS]
    assert ["reproduce", "--help"] in asked  # of another distribution
    ended, _ = started(*asked)
    for arguments, (status, imported) in zip(asked, ended, strict=True):
        assert status == 0, arguments
        assert not HEAVY & set(imported), arguments


WRONG = [
    ["scroe"],
    ["score"],
    ["score", "v.npy", "--nope"],
    ["score", "v.npy", "--out", "o.csv"],
    ["search", "g.faiss", "--id", "1", "--limit", "few"],
    ["index", "nope"],
]


def test_a_wrong_command_imports_nothing_heavy():
    ended, _ = started(*WRONG)
    for arguments, (status, imported) in zip(WRONG, ended, strict=True):
        assert status == 2, arguments
        assert not HEAVY & set(imported), arguments


def test_the_version_and_completion_do_not_even_import_rich():
    (((status, imported),), _) = started(["--version"])
    assert status == 0
    assert not {"rich", *HEAVY} & set(imported)
    asking = {"_AUREOLE_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    (((_, imported),), _) = started([], COMP_WORDS="aureole score --v", **asking)
    assert not {"rich", *HEAVY} & set(imported)


def test_help_takes_little_cpu():
    """About 0.4 s on an idle core; importing torch takes seconds."""
    _, seconds = started(["--help"])
    assert seconds < 1.5


def test_importing_the_library_imports_no_torch():
    code = (
        "import sys, aureole; assert 'torch' not in sys.modules; "
        "aureole.VonMisesFisher; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SEARCH = """
import sys
from aureole.cli import main
sys.argv = ["aureole", "search", sys.argv[1], "--id", "row 3"]
try:
    main()
finally:
    print(*(name for name in sys.modules if name.split(".")[0] == "aureole"))
"""


def test_a_search_imports_no_losses_models_or_evaluation(tmp_path):
    pytest.importorskip("lance")
    gallery = au.VonMisesFisher(torch.eye(8), 50.0)
    where = tmp_path / "gallery.lance"
    CredibleIndex.create(where, gallery, [f"row {i}" for i in range(8)]).close()
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, where], capture_output=True, text=True, check=True
    )
    imported = done.stdout.splitlines()[-1].split()
    assert len(imported) <= 70
    packages = {name.split(".")[1] for name in imported if "." in name}
    assert not packages & {"losses", "models", "evaluation", "training", "encoders", "explorer"}
