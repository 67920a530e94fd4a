"""Saved encoders of two networks: ``IndependentEncoder`` as a folder, without code in it."""

from pathlib import Path
from typing import Any

from torch import nn

from aureole.errors import InvalidInputError
from aureole.models._blueprint import BACKBONES, CUSTOM, build, describe, outline
from aureole.models._card import Card, model_card
from aureole.models._encoders import IndependentEncoder
from aureole.models._saving import check_weights, load_folder, save_folder

_FORMAT = "aureole-independent-encoder-1"
_USAGE = (
    "from aureole.models._independent import load_independent",
    'encoder = load_independent("folder")',
    "posterior = encoder(inputs)  # posterior.mu, posterior.kappa",
)


def save_independent(
    encoder: IndependentEncoder, folder: Path | str, *, card: Card | None = None
) -> Path:
    """Write an encoder of two networks of ``models.blueprint`` into a folder, and return it.

    Examples
    --------
    >>> import tempfile, torch
    >>> from aureole.models import ResidualMLP
    >>> encoder = IndependentEncoder(ResidualMLP(4, 3, width=8), ResidualMLP(4, 1, width=8), n_in=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load_independent(save_independent(encoder, folder))
    >>> x = torch.randn(5, 4)
    >>> torch.equal(again(x).kappa, encoder(x).kappa)
    True
    """
    networks = {
        name: describe(getattr(encoder, name), BACKBONES) for name in ("location", "certainty")
    }
    if type(encoder) is not IndependentEncoder or CUSTOM in [n["kind"] for n in networks.values()]:
        raise InvalidInputError(
            f"{type(encoder).__name__} cannot be rebuilt from numbers; save its state_dict instead."
        )
    config = {"format": _FORMAT, "n_in": len(encoder.centre), **networks}
    text = model_card(
        card or Card(), format=_FORMAT, dim=networks["location"]["n_out"], usage=_USAGE
    )
    return save_folder(folder, config, encoder.state_dict(), card=text)


def load_independent(folder: Path | str) -> IndependentEncoder:
    """The encoder that was saved in a folder, in ``eval`` mode; its numbers are checked before they are used."""
    config, weights = load_folder(folder, format=_FORMAT)
    n_in = config.get("n_in")
    if type(n_in) is not int or not 1 <= n_in <= 65_536:
        raise InvalidInputError(f"the config in {folder} is damaged: n_in is {str(n_in)[:50]}.")
    check_weights(weights, _encoder(config, n_in, outline).state_dict())
    encoder = _encoder(config, n_in, build)
    encoder.load_state_dict(weights)
    return encoder.requires_grad_(False).eval()


def _encoder(config: dict[str, Any], n_in: int, make: Any) -> IndependentEncoder:
    networks: list[nn.Module] = [
        make(config.get(name), BACKBONES) for name in ("location", "certainty")
    ]
    return IndependentEncoder(*networks, n_in=n_in)
