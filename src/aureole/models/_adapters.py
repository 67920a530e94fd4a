"""Backbones of other libraries: what they call features, as a tensor [n, n_out] that a head takes.

The models are known by what they offer (duck typing); neither timm nor transformers is imported or needed here.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.errors import InvalidInputError


def mean_pool(states: Float[Tensor, "n tokens d"], mask: Tensor) -> Float[Tensor, "n d"]:
    r"""The mean :math:`\sum_t m_t h_t / \sum_t m_t` of the states that the mask [n, tokens] keeps, in float32 or more.

    What the mask leaves out does not enter, whatever it holds. A row of which nothing is kept is an error.

    Examples
    --------
    >>> states = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [torch.nan, 9.0]]])
    >>> mean_pool(states, torch.tensor([[1, 1, 0]]))
    tensor([[2., 3.]])
    """
    if mask.shape != states.shape[:-1]:
        raise InvalidInputError(
            f"the mask must have a 0 or 1 for each of the states {tuple(states.shape[:-1])}, but has shape "
            f"{tuple(mask.shape)}."
        )
    kept = mask != 0
    if bool((kept & (mask != 1)).any()):
        raise InvalidInputError("the mask must hold 0 and 1 alone.")
    count = kept.sum(-1)
    if bool((count == 0).any()):
        row = int((count == 0).int().argmax())
        raise InvalidInputError(
            f"the mask of row {row} keeps no token, so that there is nothing to average. Drop empty inputs first."
        )
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    total = torch.where(kept.unsqueeze(-1), states, 0.0).sum(-2)
    return total / count.unsqueeze(-1)


class ImageFeatures(nn.Module):
    """The features before the classifier of a timm model, or of any with the same three names.

    It needs ``num_features``, ``forward_features(images)`` and ``forward_head(features, pre_logits=True)``.

    Parameters
    ----------
    model
        As ``timm.create_model("resnet50", pretrained=True)``.

    Examples
    --------
    ``PosteriorEncoder(ImageFeatures(model), KappaFromNorm(model.num_features, 32))``, and the same by ``n_out``:

    >>> class Model(nn.Linear):
    ...     num_features = 8
    ...     def forward_features(self, images):
    ...         return self(images.flatten(1))[..., None, None]
    ...     def forward_head(self, features, pre_logits=False):
    ...         return features.mean((2, 3))
    >>> ImageFeatures(Model(12, 8))(torch.zeros(5, 3, 2, 2)).shape
    torch.Size([5, 8])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        needed = ("num_features", "forward_features", "forward_head")
        missing = [name for name in needed if not hasattr(model, name)]
        if missing:
            raise InvalidInputError(
                f"{type(model).__name__} has no {' and no '.join(missing)}, as timm's models have. Pass a module that "
                "returns features [n, n_in] to PosteriorEncoder as it is."
            )
        self.model: Any = model
        # where a last layer lies before the classifier, features before and after it differ in number
        self.n_out = int(getattr(model, "head_hidden_size", None) or model.num_features)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Float[Tensor, "n n_out"]:
        """The features of images."""
        features = self.model.forward_head(self.model.forward_features(images), pre_logits=True)
        if features.dim() != 2 or features.shape[-1] != self.n_out:
            raise InvalidInputError(
                f"{type(self.model).__name__} gave features of shape {tuple(features.shape)}, not (n, {self.n_out}). "
                "Make it with a global pooling."
            )
        return features


class TextFeatures(nn.Module):
    """The features of a transformers model: the mean of its last states over the tokens, or its pooler's output.

    Parameters
    ----------
    model
        As ``transformers.AutoModel.from_pretrained(name)``; it takes a tokenised batch by keywords.
    pooling
        "mean" over the attention mask, or "pooler" for ``pooler_output``.

    Examples
    --------
    ``PosteriorEncoder(TextFeatures(model), KappaFromNorm(model.config.hidden_size, 32))`` takes what a tokenizer gives:
    ``encoder(tokenizer(texts, padding=True, return_tensors="pt"))`` or ``encoder(**batch)``.
    """

    def __init__(self, model: nn.Module, *, pooling: str = "mean") -> None:
        super().__init__()
        if pooling not in ("mean", "pooler"):
            raise InvalidInputError(f"pooling must be 'mean' or 'pooler', not {pooling!r}.")
        size = getattr(getattr(model, "config", None), "hidden_size", None)
        if not isinstance(size, int):
            raise InvalidInputError(
                f"{type(model).__name__} has no config.hidden_size, as transformers' models have."
            )
        self.model, self.pooling, self.n_out = model, pooling, size

    def forward(
        self, batch: Mapping[str, Any] | None = None, **options: Any
    ) -> Float[Tensor, "n n_out"]:
        """The features of a tokenised batch, given as a mapping or by keywords."""
        batch = dict(options if batch is None else {**batch, **options})
        outputs = self.model(**batch)
        if self.pooling == "pooler":
            found = getattr(outputs, "pooler_output", None)
            if found is None:
                raise InvalidInputError(
                    f"{type(self.model).__name__} gives no pooler_output. Use pooling='mean'."
                )
            return found
        mask = batch.get("attention_mask")
        if mask is None:
            raise InvalidInputError(
                "the batch has no attention_mask, without which padding would count as text. "
                "Tokenisers give one: tokenizer(texts, padding=True, return_tensors='pt')."
            )
        return mean_pool(outputs.last_hidden_state, mask)
