"""Real encoders of every kind, made once: gte-small, a vision transformer, an API on loopback."""

import os
import threading
from contextlib import contextmanager

import pytest
import torch

TEXTS = [
    "a dog",
    "two men ride bicycles along the beach at dusk",
    "a cat sleeps",
    "a group of children in red shirts plays football in the rain",
]


def declare_torchvision_ops():
    """Let a CUDA build of torchvision be imported with the CPU build of torch, which lacks two of its operators."""
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library  # the operators live as long as it does
    return None


@pytest.fixture(scope="session")
def gte(shared_data):
    """The folder of gte-small."""
    pytest.importorskip("sentence_transformers")
    return shared_data / "weights" / "gte_small"


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory):
    """A small vision transformer with random weights, as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=64, image_size=48, patch_size=16)
    transformers.ViTModel(config).save_pretrained(folder)
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    ViTImageProcessorPil(size={"height": 48, "width": 48}).save_pretrained(folder)
    return folder


@contextmanager
def served(app):
    """The URL of an application on a free port of this machine."""
    uvicorn = pytest.importorskip("uvicorn")
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


class Api:
    """An application that speaks /v1/embeddings; ``faults`` are (status, headers) to answer with first."""

    def __init__(self, encode):
        fastapi = pytest.importorskip("fastapi")
        self.app, self.encode = fastapi.FastAPI(), encode
        self.faults, self.seen, self.delay = [], [], 0.0
        self.app.post("/v1/embeddings")(self.embeddings)

    def embeddings(self, body: dict, authorization: str | None = None):
        import time

        from fastapi.responses import JSONResponse

        self.seen.append(body)
        if self.delay:
            time.sleep(self.delay)
        if self.faults:
            status, headers = self.faults.pop(0)
            return JSONResponse({"error": {"message": "slow\ndown"}}, status, headers)
        if body.get("model") != "gte-small":
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        rows = self.encode(body["input"])
        data = [{"index": i, "embedding": [float(x) for x in row]} for i, row in enumerate(rows)]
        return {"object": "list", "data": data[::-1], "model": "gte-small"}


@pytest.fixture(scope="session")
def gte_api(gte):
    """(URL, application) of gte-small behind the protocol, encoded by sentence-transformers itself."""
    from sentence_transformers import SentenceTransformer

    from aureole.encoders._encoder import quiet

    with quiet():
        model = SentenceTransformer(str(gte), device="cpu", model_kwargs={"dtype": torch.float32})
    lock = threading.Lock()

    def encode(texts):
        with lock:
            return model.encode(texts, show_progress_bar=False)

    api = Api(encode)
    with served(api.app) as url:
        yield url, api


@pytest.fixture(scope="session")
def mobilenet_file(shared_data, tmp_path_factory):
    """A Python file that encodes pictures with MobileNetV2 and its real weights."""
    pytest.importorskip("aureole_paper")
    path = tmp_path_factory.mktemp("python") / "photos.py"
    weights = shared_data / "weights" / "mobilenetv2_imagenet_bottleneck_fp16.npz"
    path.write_text(MOBILENET.format(weights=str(weights)))
    return path


MOBILENET = """
from pathlib import Path
import numpy as np
import torch
from aureole_paper.mobilenet import load_mobilenet

network = load_mobilenet(Path({weights!r}), 112)

@torch.inference_mode()
def encode(pictures):
    squares = [np.array(picture.resize((112, 112))) for picture in pictures]
    return network(torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2))

encode.kind = "image"
encode.resolution = 112
"""

os.environ.setdefault("HF_HUB_OFFLINE", "1")
