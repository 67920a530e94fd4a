"""Backbones of timm and transformers: adapters that return features [n, n_out] for a head.

The models are duck-typed; neither timm nor transformers is imported here.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.errors import InvalidInputError


def mean_pool(states: Float[Tensor, "n tokens d"], mask: Tensor) -> Float[Tensor, "n d"]:
    r"""The mean :math:`\sum_t m_t h_t / \sum_t m_t` of the states selected by a mask [n, tokens], in float32 or more.

    Masked states are ignored, even if they are NaN. A row without any selected state is an error.

    Examples
    --------
    >>> states = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [torch.nan, 9.0]]])
    >>> mean_pool(states, torch.tensor([[1, 1, 0]]))
    tensor([[2., 3.]])
    """
    if mask.shape != states.shape[:-1]:
        raise InvalidInputError(
            f"the mask must have the states' shape {tuple(states.shape[:-1])}, but has shape {tuple(mask.shape)}."
        )
    kept = mask != 0
    if bool((kept & (mask != 1)).any()):
        raise InvalidInputError("the mask must hold only 0 and 1.")
    count = kept.sum(-1)
    if bool((count == 0).any()):
        row = int((count == 0).int().argmax())
        raise InvalidInputError(
            f"the mask of row {row} selects no token, so there is nothing to average. Drop empty inputs first."
        )
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    total = torch.where(kept.unsqueeze(-1), states, 0.0).sum(-2)
    return total / count.unsqueeze(-1)


class ImageFeatures(nn.Module):
    """The features before the classifier of a timm model, or of any model with the same three attributes.

    The model needs ``num_features``, ``forward_features(images)`` and ``forward_head(features, pre_logits=True)``.

    Parameters
    ----------
    model
        Such as ``timm.create_model("resnet50", pretrained=True)``.

    Examples
    --------
    Use it as ``PosteriorEncoder(ImageFeatures(model), KappaFromNorm(model.num_features, 32))``.

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
                f"{type(model).__name__} has no {' and no '.join(missing)}, which timm's models have. A module that "
                "already returns features [n, n_in] needs no adapter: pass it to PosteriorEncoder."
            )
        self.model: Any = model
        # some models have a hidden layer before the classifier, which changes the number of features
        self.n_out = int(getattr(model, "head_hidden_size", None) or model.num_features)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Float[Tensor, "n n_out"]:
        """The features of images."""
        features = self.model.forward_head(self.model.forward_features(images), pre_logits=True)
        if features.dim() != 2 or features.shape[-1] != self.n_out:
            raise InvalidInputError(
                f"{type(self.model).__name__} returned features of shape {tuple(features.shape)}, not "
                f"(n, {self.n_out}). Create it with global pooling."
            )
        return features


class TextFeatures(nn.Module):
    """The features of a transformers model: the mean of its last states over the tokens, or its pooler's output.

    Parameters
    ----------
    model
        Such as ``transformers.AutoModel.from_pretrained(name)``; it takes a tokenised batch as keyword arguments.
    pooling
        "mean" over the attention mask, or "pooler" for ``pooler_output``.

    Examples
    --------
    ``PosteriorEncoder(TextFeatures(model), KappaFromNorm(model.config.hidden_size, 32))`` takes a tokenizer's output:
    ``encoder(tokenizer(texts, padding=True, return_tensors="pt"))`` or ``encoder(**batch)``.
    """

    def __init__(self, model: nn.Module, *, pooling: str = "mean") -> None:
        super().__init__()
        if pooling not in ("mean", "pooler"):
            raise InvalidInputError(f"pooling must be 'mean' or 'pooler', not {pooling!r}.")
        size = getattr(getattr(model, "config", None), "hidden_size", None)
        if not isinstance(size, int):
            raise InvalidInputError(
                f"{type(model).__name__} has no config.hidden_size, which transformers' models have."
            )
        self.model, self.pooling, self.n_out = model, pooling, size

    def forward(
        self, batch: Mapping[str, object] | None = None, **named_inputs: object
    ) -> Float[Tensor, "n n_out"]:
        """The features of a tokenised batch, passed as a mapping or as keyword arguments."""
        batch = {**(batch or {}), **named_inputs}
        outputs = self.model(**batch)
        if self.pooling == "pooler":
            pooled = getattr(outputs, "pooler_output", None)
            if pooled is None:
                raise InvalidInputError(
                    f"{type(self.model).__name__} returns no pooler_output. Use pooling='mean'."
                )
            return pooled
        mask = batch.get("attention_mask")
        if not isinstance(mask, Tensor):
            raise InvalidInputError(
                "the batch has no attention_mask, without which padding would count as text. "
                "Tokenizers return one: tokenizer(texts, padding=True, return_tensors='pt')."
            )
        return mean_pool(outputs.last_hidden_state, mask)
