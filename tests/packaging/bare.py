"""The wheel without extras: what it imports, what works, and what it says of what is missing."""

import json
import struct
import sys
import zlib

from tests.packaging.environments import Environment

__all__ = ["HEAVY", "check_base", "prepare"]

HEAVY = (
    "lightning_fabric", "ray", "pyarrow", "sentence_transformers", "transformers", "matplotlib", "jinja2", "lance",
    "faiss", "psycopg", "fastapi", "uvicorn", "PIL", "sklearn", "scipy", "pandas", "torchmetrics", "huggingface_hub",
    "prometheus_client", "datasets", "httpx", "langchain_core", "llama_index",
)  # fmt: skip


def prepare(env: Environment) -> None:
    """Vectors of MiniLM's dimension with groups, and a picture, in the folder where commands run."""
    env.code(
        "import numpy as np; r = np.random.default_rng(0); g = np.repeat(np.arange(300), 2)\n"
        "v = r.normal(size=(300, 384))[g] + r.normal(size=(600, 384)) / 4\n"
        "np.save('v.npy', v.astype('float32')); np.save('g.npy', g)"
    )
    (env.work / "p.png").write_bytes(_png(8))
    head = env.code("from aureole.models import MINILM_CAPTIONS; print(MINILM_CAPTIONS)")
    link = env.work / "head"
    if not link.exists():
        link.symlink_to(head)


def check_base(env: Environment, version: str) -> None:
    """The wheel alone: what it imports, its help and version, and the command that needs no extra."""
    env.run(env.python, "-m", "pip", "check")
    loaded = json.loads(
        env.code(
            "import json, sys, torch, numpy.random\n"
            "before = {n.partition('.')[0] for n in sys.modules}; import aureole\n"
            "print(json.dumps([sorted({n.partition('.')[0] for n in sys.modules} - before), sorted(sys.modules)]))"
        )
    )
    more = {name for name in loaded[0] if name not in sys.stdlib_module_names}
    assert more <= {"aureole", "jaxtyping", "wadler_lindig", "safetensors"}, (
        f"import aureole pulls in {more}"
    )
    assert not set(HEAVY) & set(loaded[1])
    script = str(env.folder / "bin" / "aureole")
    assert env.run(script, "--version") == f"aureole {version}\n"
    assert "fit-head" in env.run(script, "--help")
    assert "[data]" in env.run(script, "train", "--example", "vectors")
    files = (
        "from importlib.resources import files; f = files('aureole'); "
        "assert all((f / n).is_file() for n in ('py.typed', 'explorer/page.html.jinja', "
        "'explorer/explorer_page/index.html', 'models/minilm_captions/weights.safetensors'))"
    )
    env.code(files)
    prepare(env)
    # what needs none, and what says which it needs
    env.aureole("evaluate", "v.npy", "--columns-from", "g.npy", "--head", "head")
    said = env.aureole("score", "v.npy", "--head", "head", "--out", "scored.parquet", status=2)
    assert "pip install 'aureole[tables]'" in said


def _png(side: int) -> bytes:
    """A grey picture, without a package that makes pictures."""
    rows = zlib.compress(b"".join(b"\0" + bytes([128] * 3 * side) for _ in range(side)))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
