"""``transformers:NAME_OR_FOLDER`` and ``timm:NAME_OR_FOLDER``: texts by transformers, pictures by both."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aureole.data._image_files import read_rgb
from aureole.encoders._encoder import Encoder, Kind, on_device, quiet, weights_fingerprint
from aureole.errors import EncoderError
from aureole.models._feature_extractors import mean_pool

_MAX_TOKENS = 512  # where neither the model nor the tokenizer has a limit
_GREY = np.full((64, 64, 3), 127, np.uint8)


def load(name: str, kind: Kind | None = None) -> Encoder:
    """The encoder of a folder or of a name on the hub; a model of both texts and pictures needs ``kind``."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(name)
    both = hasattr(config, "vision_config") and hasattr(config, "text_config")
    if both and kind is None:
        raise EncoderError(
            f"transformers:{name} takes texts and pictures: use --text-column or --image-column to choose."
        )
    own = "image" if hasattr(config, "num_channels") or hasattr(config, "image_size") else "text"
    kind = kind if both else own
    with quiet():
        options = {"output_loading_info": True, "dtype": torch.float32}
        model, about = AutoModel.from_pretrained(name, **options)
    # layers that the checkpoint lacks are random: they are not used, and not part of the fingerprint
    missing = frozenset(about.get("missing_keys", ()))
    encoder = TextModel if kind == "text" else ImageModel
    return encoder(on_device(model), name, both=both, missing=missing)


class _Model(Encoder):
    """What both kinds share."""

    def __init__(self, model: Any, name: str, *, both: bool, missing: frozenset[str]) -> None:
        self.name = f"transformers:{name}"
        self._model, self._both = model, both
        self._pooler = not any("pooler" in key.split(".") for key in missing)
        settings = self._load_preprocessing(name)
        self.dim = self._probe()
        self.fingerprint = weights_fingerprint(model, "transformers", settings, skip=missing)

    def _load_preprocessing(self, name: str) -> Any:
        raise NotImplementedError


class TextModel(_Model):
    """The mean of the last states over the tokens; of a model of both kinds, its text features."""

    kind = "text"
    group = 8

    def _load_preprocessing(self, name: str) -> Any:
        self._tokenizer, length = load_tokenizer(name, self._model.config)
        return {"pooling": "features" if self._both else "mean", "length": length}

    @torch.inference_mode()
    def _vectors(self, prepared: list[Any]) -> Tensor:
        batch = self._tokenizer(prepared).to(self._model.device)
        if self._both:
            return _features(self._model.get_text_features(**batch))
        return mean_pool(self._model(**batch).last_hidden_state, batch["attention_mask"])


class ImageModel(_Model):
    """The pooled output; the class token or the mean of the last states where the pooler is untrained."""

    kind = "image"

    def _load_preprocessing(self, name: str) -> Any:
        self._transform, self.resolution, settings = load_image_transform(name)
        return settings

    def prepare(self, raw: Any) -> Tensor:
        """The pixels of one picture, by the model's own image processor."""
        return self._transform(read_rgb(raw))

    @torch.inference_mode()
    def _vectors(self, prepared: list[Any]) -> Tensor:
        pixels = torch.stack(prepared).to(self._model.device)
        if self._both:
            return _features(self._model.get_image_features(pixel_values=pixels))
        outputs = self._model(pixel_values=pixels)
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is not None and self._pooler:
            return pooled.flatten(1)
        states = outputs.last_hidden_state
        if states.dim() == 4:
            return states.mean((2, 3))
        tokens = any(name.endswith("cls_token") for name, _ in self._model.named_parameters())
        return states[:, 0] if tokens else states.mean(1)


def load_tokenizer(name: str, config: Any = None) -> tuple[Any, int]:
    """(A function from texts to padded tensors, the maximum number of tokens)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
    sane = [limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**6]
    length = min(sane, default=_MAX_TOKENS)
    options = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    return lambda texts: tokenizer(texts, **options), length


def load_image_transform(name: str) -> tuple[Any, int | None, dict[str, Any]]:
    """(A function from a Pillow image to pixels [3, h, w], the side in pixels, its settings)."""
    from transformers import AutoImageProcessor

    # Pillow gives the same pixels with and without torchvision
    processor: Any = AutoImageProcessor.from_pretrained(name, backend="pil")

    def transform(picture: Any) -> Tensor:
        return processor(images=picture, return_tensors="pt")["pixel_values"][0]

    probe = transform(read_rgb(_GREY))
    names = ("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor")
    settings = {key: str(getattr(processor, key, None)) for key in names}
    return transform, int(min(probe.shape[-2:])), settings


def _features(outputs: Any) -> Tensor:
    """The features of a model of texts and pictures: a tensor, or the pooled output in newer versions."""
    return outputs if isinstance(outputs, Tensor) else outputs.pooler_output


def load_timm(name: str, kind: Kind | None = None) -> Encoder:
    """The encoder of a pretrained model, or of a folder that timm's ``save_for_hf`` wrote."""
    del kind
    import timm

    place = f"local-dir:{Path(name).absolute()}" if Path(name).is_dir() else name
    return TimmEncoder(on_device(timm.create_model(place, pretrained=True, num_classes=0)), name)


class TimmEncoder(Encoder):
    """The pooled features before the classifier of a timm model."""

    kind = "image"

    def __init__(self, model: Any, name: str) -> None:
        from timm.data import create_transform, resolve_model_data_config

        self.name = f"timm:{name}"
        self._model = model
        config = resolve_model_data_config(model)
        self._transform: Any = create_transform(**config, is_training=False)
        self.resolution = int(config["input_size"][-1])
        self._device = next(model.parameters()).device
        self.dim = self._probe()
        self.fingerprint = weights_fingerprint(
            model, "timm", {k: str(v) for k, v in config.items()}
        )

    def prepare(self, raw: Any) -> Tensor:
        """The pixels of one picture, by timm's transform for this model."""
        return self._transform(read_rgb(raw))

    @torch.inference_mode()
    def _vectors(self, prepared: list[Any]) -> Tensor:
        return self._model(torch.stack(prepared).to(self._device))
