"""timm's models with timm's own transform; run where timm and a torchvision can be imported."""

import numpy as np
import pytest
import torch
from PIL import Image

from aureole.encoders import load
from tests.encoders.conftest import declare_torchvision_ops

OPERATORS = declare_torchvision_ops()
timm = pytest.importorskip("timm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model with random weights, as timm saves it."""
    from timm.models import save_for_hf

    torch.manual_seed(0)
    model = timm.create_model("resnet18", pretrained=False)
    folder = tmp_path_factory.mktemp("timm") / "resnet"
    save_for_hf(model, str(folder), safe_serialization=True)
    return folder


def test_a_model_gives_its_pooled_features(folder):
    encoder = load(f"timm:{folder}")
    assert (encoder.kind, encoder.dim, encoder.resolution) == ("image", 512, 224)
    rng = np.random.default_rng(0)
    pictures = [
        Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8)) for _ in range(3)
    ]
    model = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval()
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    with torch.inference_mode():
        expected = model(torch.stack([transform(one) for one in pictures])).numpy()
    np.testing.assert_allclose(encoder.encode(pictures, batch_size=2), expected, atol=1e-4)
    assert load(f"timm:{folder}").fingerprint == encoder.fingerprint


def test_names_that_timm_does_not_know():
    with pytest.raises(ValueError, match="timm:no_such_model cannot be loaded"):
        load("timm:no_such_model")
