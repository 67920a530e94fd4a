"""``timm:NAME_OR_FOLDER``: image models of timm, with timm's own transform."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aureole.data._image_files import read_rgb
from aureole.encoders._encoder import Encoder, Kind, on_device, weights_fingerprint


def load(name: str, kind: Kind | None = None) -> Encoder:
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
