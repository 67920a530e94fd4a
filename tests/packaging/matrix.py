"""Every extra of the wheel in an environment of its own, with a command that needs it.

``python -m tests.packaging.matrix``, or ``.ci/wheel``. Without --extras the base alone; ``--extras readme`` adds those
that README installs, ``--extras every`` all there are.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.packaging.bare import check_base
from tests.packaging.environments import ROOT, Environment, base, build, layer, timed
from tests.packaging.readme import Runner

__all__ = ["SMOKES", "main"]

README = ("train", "reports", "text", "retrieval")


def _train(env: Environment) -> None:
    quick = ("--dim", "4", "--kappa-pos", "8", "--steps", "20", "--items", "64")
    env.aureole(
        "fit-head", "v.npy", "--columns-from", "g.npy", "--out", "fitted", "--overwrite", *quick
    )


def _metrics(env: Environment) -> None:
    env.code("from aureole.evaluation import RecallAt1; RecallAt1()")


def _reports(env: Environment) -> None:
    command = ("evaluate", "v.npy", "--columns-from", "g.npy", "--head", "head")
    env.aureole(*command, "--report", "page.html")
    assert "<svg" in (env.work / "page.html").read_text()


def _images(env: Environment) -> None:
    read = "from pathlib import Path; from aureole.data import read_square as r; "
    assert env.code(f"{read}print(*r(Path('p.png'), 32).shape)") == "3 32 32"


def _tables(env: Environment) -> None:
    env.aureole("score", "v.npy", "--head", "head", "--with-mu", "--out", "scored.parquet")
    env.aureole(
        "score",
        "scored.parquet",
        "--vector-column",
        "mu",
        "--head",
        "head",
        "--out",
        "t.csv",
        status=1,
    )


def _retrieval(env: Environment) -> None:
    for gallery in ("g.lance", "g.faiss"):
        env.aureole("index", "build", "v.npy", "--head", "head", "--out", gallery)
        found = json.loads(env.aureole("search", gallery, "--id", "3", "--json"))
        assert found["hits"]
    # nobody listens there: the packages are, or the error would be another
    said = env.aureole("index", "info", "postgresql://nobody@127.0.0.1:1/none", status=1)
    assert "127.0.0.1" in said


def _text(env: Environment) -> None:
    program = (
        "from aureole.training import minilm; from aureole import FrozenHead\n"
        "v = minilm().encode(['it was fine', 'a brown dog catches a red frisbee in the snow'])\n"
        "k = FrozenHead.load('head').predict(v).kappa; print(bool(k[0] < k[1]))"
    )
    assert env.code(program) == "True"


def _serve(env: Environment) -> None:
    env.code(
        "import aureole.serve._app, aureole.serve._server; from aureole.serve import Client, Metrics; Metrics(); Client('http://localhost')"
    )
    said = env.aureole("serve", "--index", "g.faiss", status=2)  # it can, but has no engine
    assert "pip install 'aureole[retrieval]'" in said


def _scale(env: Environment) -> None:
    program = (
        "import math; from aureole.scale import sweep\n"
        "print(sorted(r for _, r in sweep(math.sqrt, [1, 4], workers=2)))"
    )
    assert env.code(program).endswith("[1.0, 2.0]")
    env.code(
        "import numpy as np; from aureole.data import write_columns; from pathlib import Path; "
        "write_columns(Path('v.parquet'), {'v': np.load('v.npy')})"
    )
    env.aureole("embed", "v.parquet", "--encoder", "head", "--out", "e.lance", "--workers", "2")
    env.aureole("index", "approximate", "e.lance", "--workers", "2", "--lists", "4")


def _hub(env: Environment) -> None:
    program = (
        "from aureole import FrozenHead; from aureole.errors import AureoleError\n"
        "from aureole.models import from_pretrained\n"
        "try: from_pretrained(FrozenHead, 'nobody/nothing')\n"
        "except AureoleError as error: print(error)"
    )
    said = env.code(program)  # offline: the package is asked, and has no such repository
    assert "nobody/nothing" in said
    assert "pip install" not in said


def _otel(env: Environment) -> None:
    env.code("from aureole.serve._tracing import Tracing; Tracing().close()")


def _all(env: Environment) -> None:
    env.aureole("index", "build", "v.npy", "--head", "head", "--out", "all.faiss")
    address = (
        "serve",
        "--index",
        "all.faiss",
        "--encoder",
        "head",
        "--modality",
        "text",
        "--port",
        "0",
    )
    runner = Runner(env, ROOT / "constraints.txt", 120, ROOT / "dist")
    try:
        runner.serve(f"python -m aureole {' '.join(address)}")
    finally:
        runner.stop()
    for smoke in (_train, _reports, _images, _hub):
        smoke(env)


SMOKES: dict[str, Callable[[Environment], None]] = {
    "train": _train, "metrics": _metrics, "reports": _reports, "images": _images, "tables": _tables,
    "retrieval": _retrieval, "text": _text, "serve": _serve, "scale": _scale, "hub": _hub, "otel": _otel, "all": _all,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Build, install, try; the number of extras that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--extras", default="", help='names with commas between them, "readme" or "every"'
    )
    given = parser.parse_args(arguments).extras
    named = {"": (), "readme": README, "every": tuple(SMOKES)}
    extras = named.get(given) if given in named else tuple(given.split(","))
    assert extras is not None
    failed = []
    with timed("all"), tempfile.TemporaryDirectory(prefix="aureole-wheel-") as temporary:
        place = Path(temporary)
        with timed("build"):
            built = build(place / "dist")
        for file in (built.wheel, built.sdist):
            print(f"{file.stat().st_size / 2**20:7.2f} MiB {file.name}")
        with timed("torch, and the wheel without extras, installed"):
            bare = base(place / "base", place / "work", built.wheel)
        with timed("import, --help, --version, pip check, score"):
            check_base(bare, built.wheel.name.split("-")[1])
        for extra in extras:
            try:
                with timed(f"[{extra}] installed"):
                    env = layer(bare, place / extra, built.wheel, extra)
                with timed(f"[{extra}] used"):
                    env.run(env.python, "-m", "pip", "check")
                    SMOKES[extra](env)
            except (AssertionError, subprocess.SubprocessError) as error:
                failed.append(extra)
                print(f"[{extra}] {error}")
            subprocess.run(["rm", "-rf", str(place / extra)], check=False)
    print(f"failed: {', '.join(failed)}" if failed else "all is well")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
