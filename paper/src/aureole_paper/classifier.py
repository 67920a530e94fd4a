"""Published classifiers of CIFAR-10: their weights for a backbone, and their last layer."""

from pathlib import Path

import torch
from torch import nn

from aureole.errors import InvalidInputError, MissingInputError
from aureole.models._networks import ImageNetwork
from aureole.models._saving import check_weights, read_weights

_COUNTER = "num_batches_tracked"  # of a batch norm; files may omit it
_CLASSIFIER = ("linear.weight", "linear.bias")  # the last layer of a classifier


def load_classifier(backbone: ImageNetwork, path: Path | str) -> nn.Linear:
    """Load a classifier's weights (safetensors) into the backbone and return its last layer, trained on the classes."""
    if not Path(path).is_file():
        raise MissingInputError(
            f"weights not found: {path}. Train from scratch, or pass a data folder that contains them."
        )
    weights = read_weights(Path(path))
    expected = {k: v for k, v in backbone.state_dict().items() if not k.endswith(_COUNTER)}
    # the number of classes is the file's; the number of features is the backbone's
    bias = weights.get(_CLASSIFIER[1], torch.empty(()))
    classes = len(bias) if bias.dim() == 1 else 1
    for name, shape in zip(_CLASSIFIER, ((classes, backbone.n_out), (classes,)), strict=True):
        expected[name] = torch.empty(shape, device="meta")
    try:
        check_weights(weights, expected)
    except InvalidInputError as error:
        kind = type(backbone).__name__
        raise InvalidInputError(f"the weights in {path} do not fit {kind}: {error}") from error
    weight, bias = (weights.pop(name) for name in _CLASSIFIER)
    backbone.load_state_dict(weights, strict=False)
    last = nn.Linear(weight.shape[1], weight.shape[0])
    last.load_state_dict({"weight": weight, "bias": bias})
    return last
