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


def _map(env: Environment) -> None:
    program = (
        "import numpy as np, torch; from aureole import CredibleIndex, VonMisesFisher\n"
        "from aureole.explorer import fit_map\n"
        "mu = torch.nn.functional.normalize(torch.from_numpy(np.load('v.npy')[:200]), dim=1)\n"
        "rows = VonMisesFisher(mu, torch.ones(200))\n"
        "print(fit_map(CredibleIndex.create('faiss://', rows, list(map(str, range(200))))).note.method)"
    )
    assert env.code(program) == "t-SNE"


def _notebook(env: Environment) -> None:
    program = (
        "import torch, aureole as au\n"
        "rows = au.VonMisesFisher(torch.eye(4), torch.ones(4))\n"
        "au.explore(rows, labels=list('abcd')).save('explored.html')"
    )
    env.code(program)
    assert (env.work / "explored.html").is_file()


def _qdrant(env: Environment) -> None:
    program = (
        "import numpy as np; from aureole import CredibleIndex, VonMisesFisher; import torch\n"
        "from qdrant_client import QdrantClient, models as m\n"
        "v = np.load('v.npy')[:50]; client = QdrantClient(':memory:')\n"
        "size = m.VectorParams(size=384, distance=m.Distance.COSINE)\n"
        "client.create_collection('v', vectors_config=size)\n"
        "client.upsert('v', [m.PointStruct(id=i, vector=row.tolist()) for i, row in enumerate(v)])\n"
        "mu = torch.nn.functional.normalize(torch.from_numpy(v[7]), dim=0)\n"
        "print(CredibleIndex.wrap(client, 'v').search(VonMisesFisher(mu, 5000.0), limit=1).ids)"
    )
    assert env.code(program) == "[7]"


def _milvus(env: Environment) -> None:
    program = (
        "from pymilvus import MilvusClient; from aureole import CredibleIndex\n"
        "from aureole.errors import AureoleError\n"
        "class Empty(MilvusClient):\n"
        "    def __init__(self): pass\n"
        "    def has_collection(self, name, **_): return False\n"
        "try: CredibleIndex.wrap(Empty(), 'nothing')\n"
        "except AureoleError as error: print(error)"
    )
    assert "nothing" in env.code(program)  # without a server: the adapter accepts the client


_MATCHES = (
    "import numpy as np; from aureole.retrieval import MatchCalibrator, MatchFilter\n"
    "v = np.random.default_rng(0).standard_normal((100, 16)); ids = [f'item {i}' for i in range(100)]\n"
    "fitted = MatchCalibrator().fit(v, v, [[i] for i in ids], ids=ids)\n"
    "matches = MatchFilter(fitted, threshold=0.5)\n"
)


def _langchain(env: Environment) -> None:
    program = (
        f"{_MATCHES}from langchain_core.documents import Document\n"
        "from langchain_core.embeddings import DeterministicFakeEmbedding as Fake\n"
        "from aureole.retrieval import LangChainMatchRetriever\n"
        "unit = v / np.linalg.norm(v, axis=1, keepdims=True); cosines = unit @ unit[7]\n"
        "best = sorted(zip(cosines.tolist(), ids), reverse=True)\n"
        "store = lambda _, k: [(Document(i, id=i), cosine) for cosine, i in best[:k]]\n"
        "r = LangChainMatchRetriever(store=store, matches=matches, embeddings=Fake(size=16))\n"
        "print([d.id for d in r.invoke('a text')])"
    )
    assert env.code(program) == "['item 7']"


def _llamaindex(env: Environment) -> None:
    program = (
        f"{_MATCHES}from llama_index.core import MockEmbedding, VectorStoreIndex\n"
        "from llama_index.core.schema import QueryBundle, TextNode\n"
        "from aureole.retrieval import LlamaIndexMatchRetriever\n"
        "nodes = [TextNode(id_=i, text=i, embedding=row.tolist()) for i, row in zip(ids, v)]\n"
        "index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=16))\n"
        "asked = QueryBundle('a text', embedding=v[7].tolist())\n"
        "print([n.node_id for n in LlamaIndexMatchRetriever(index, matches).retrieve(asked)])"
    )
    assert env.code(program) == "['item 7']"


def _encoder_error(env: Environment, spec: str) -> str:
    """The error of an encoder that cannot be loaded. With the packages of its extra, it is not about them."""
    program = (
        "import os; os.environ['AUREOLE_API_RETRIES'] = '0'; from aureole.encoders import load\n"
        "from aureole.errors import EncoderError\n"
        f"try: load({spec!r})\n"
        "except EncoderError as error: print(error)"
    )
    said = env.code(program)
    assert said, f"{spec} was loaded"
    assert "pip install" not in said, said
    return said


def _transformers(env: Environment) -> None:
    assert "nobody/nothing" in _encoder_error(env, "transformers:nobody/nothing")


def _timm(env: Environment) -> None:
    assert "no_such_model" in _encoder_error(env, "timm:no_such_model")


def _onnx(env: Environment) -> None:
    (env.work / "damaged.onnx").write_bytes(b"not a model")
    assert "damaged.onnx" in _encoder_error(env, "onnx:damaged.onnx")


def _openai(env: Environment) -> None:
    assert "127.0.0.1" in _encoder_error(env, "openai:http://127.0.0.1:1/v1#none")


def _all(env: Environment) -> None:
    env.aureole("index", "build", "v.npy", "--head", "head", "--out", "all.faiss")
    address = (
        "serve",
        "--index",
        "all.faiss",
        "--encoder",
        "sentence-transformers:all-MiniLM-L6-v2",
        "--head",
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
    "retrieval": _retrieval, "text": _text, "serve": _serve, "scale": _scale, "hub": _hub, "otel": _otel,
    "map": _map, "notebook": _notebook,
    "qdrant": _qdrant, "milvus": _milvus, "langchain": _langchain, "llamaindex": _llamaindex,
    "transformers": _transformers, "timm": _timm, "onnx": _onnx, "openai": _openai, "all": _all,
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
