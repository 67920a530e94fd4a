"""``onnx:FILE``: a model in ONNX format, run by onnxruntime, with a tokenizer or an image processor in its folder."""

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole.data import read_rgb
from aureole.encoders._encoder import Encoder, Kind
from aureole.encoders._transformers import load_image_transform, load_tokenizer
from aureole.errors import EncoderError, MissingInputError, MissingPackageError
from aureole.models._feature_extractors import mean_pool
from aureole.records import file_hash

_TOKENIZER, _PROCESSOR, _POOLING = (
    "tokenizer.json",
    "preprocessor_config.json",
    "1_Pooling/config.json",
)


def load(name: str, kind: Kind | None = None) -> Encoder:
    """The encoder of a file; the tokenizer or image processor is in its folder, or in the folder above."""
    del kind
    path = Path(name)
    if not path.is_file():
        raise MissingInputError(f"{path} does not exist or is not a file. Check the path.")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError(
            f"onnx:{name} needs onnxruntime: pip install onnxruntime transformers pillow."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # its warnings are for the author of the model
    available = onnxruntime.get_available_providers()
    wanted = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in available]
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=wanted)
    inputs = {one.name: one for one in session.get_inputs()}
    return OnnxTexts(session, path) if "input_ids" in inputs else OnnxPictures(session, path)


class _OnnxEncoder(Encoder):
    """What both kinds share: the session and the pooling of its output."""

    def __init__(self, session: Any, path: Path) -> None:
        self.name = f"onnx:{path}"
        self._session = session
        self._inputs = [one.name for one in session.get_inputs()]
        names = [one.name for one in session.get_outputs()]
        preferred = ("sentence_embedding", "pooler_output", "image_embeds", "text_embeds")
        if self.kind == "text":  # a pooler that was trained for another task is no embedding
            preferred = ("sentence_embedding", "text_embeds", "last_hidden_state")
        self._output = next((name for name in preferred if name in names), names[0])
        settings = self._load_preprocessing(path)
        self.dim = self._probe()
        content = json.dumps([file_hash(path), self._output, settings], sort_keys=True)
        self.fingerprint = sha256(content.encode()).hexdigest()

    def _load_preprocessing(self, path: Path) -> Any:
        raise NotImplementedError

    def _run(self, feed: dict[str, np.ndarray]) -> np.ndarray:
        return self._session.run([self._output], feed)[0]


class OnnxTexts(_OnnxEncoder):
    """A text model: its sentence embedding, or its last states pooled over the tokens."""

    kind = "text"
    group = 8

    def _load_preprocessing(self, path: Path) -> Any:
        folder = folder_with(path, _TOKENIZER)
        self._tokenizer, length = load_tokenizer(str(folder))
        self._pooling = "mean"
        if (folder / _POOLING).is_file():
            modes = json.loads((folder / _POOLING).read_text(encoding="utf-8"))
            if modes.get("pooling_mode_cls_token") or modes.get("pooling_mode") == "cls":
                self._pooling = "cls"
        return [file_hash(folder / _TOKENIZER), length, self._pooling]

    def _vectors(self, prepared: list[Any]) -> Any:
        batch = self._tokenizer(prepared)
        mask = batch["attention_mask"]
        feed = {name: batch[name].numpy() for name in self._inputs if name in batch}
        if "token_type_ids" in self._inputs and "token_type_ids" not in feed:
            feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
        output = self._run(feed)
        if output.ndim != 3:
            return output
        return output[:, 0] if self._pooling == "cls" else mean_pool(torch.from_numpy(output), mask)


class OnnxPictures(_OnnxEncoder):
    """An image model: its pooled output, or the mean of its last output over positions."""

    kind = "image"

    def _load_preprocessing(self, path: Path) -> Any:
        if len(self._inputs) != 1:
            raise EncoderError(
                f"{self} has the inputs {', '.join(self._inputs)}: expected input_ids, or one input of pixels."
            )
        folder = folder_with(path, _PROCESSOR)
        self._transform, self.resolution, settings = load_image_transform(str(folder))
        return settings

    def prepare(self, raw: Any) -> np.ndarray:
        """The pixels of one picture, by the image processor in the model's folder."""
        return self._transform(read_rgb(raw)).numpy()

    def _vectors(self, prepared: list[Any]) -> Any:
        output = self._run({self._inputs[0]: np.stack(prepared)})
        if output.ndim == 4:
            return output.mean((2, 3))
        return output.mean(1) if output.ndim == 3 else output


def folder_with(path: Path, name: str) -> Path:
    """The folder of a file, or the one above, that holds a file of this name."""
    for folder in (path.absolute().parent, path.absolute().parent.parent):
        if (folder / name).is_file():
            return folder
    raise MissingInputError(
        f"{name} is missing: put it into the folder of {path}, as transformers' save_pretrained writes it."
    )
