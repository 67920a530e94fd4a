"""The adapter that makes a model of transformers, which is not imported here, a backbone of features [n, n_out]."""

from collections.abc import Mapping

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


class TextFeatures(nn.Module):
    """The features of a transformers model: the mean of its last states over the tokens.

    The model needs ``config.hidden_size``, such as ``transformers.AutoModel.from_pretrained(name)``, and takes a
    tokenised batch as keyword arguments.

    Examples
    --------
    ``PosteriorEncoder(TextFeatures(model), KappaFromNorm(model.config.hidden_size, 32))`` takes a tokenizer's output:
    ``encoder(tokenizer(texts, padding=True, return_tensors="pt"))`` or ``encoder(**batch)``.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        size = getattr(getattr(model, "config", None), "hidden_size", None)
        if not isinstance(size, int):
            raise InvalidInputError(
                f"{type(model).__name__} has no config.hidden_size, which transformers' models have."
            )
        self.model, self.n_out = model, size

    def forward(
        self, batch: Mapping[str, object] | None = None, **named_inputs: object
    ) -> Float[Tensor, "n n_out"]:
        """Return the features of a tokenised batch, passed as a mapping or as keyword arguments."""
        batch = {**(batch or {}), **named_inputs}
        mask = batch.get("attention_mask")
        if not isinstance(mask, Tensor):
            raise InvalidInputError(
                "the batch has no attention_mask, without which padding would count as text. "
                "Tokenizers return one: tokenizer(texts, padding=True, return_tensors='pt')."
            )
        return mean_pool(self.model(**batch).last_hidden_state, mask)
