"""Encoders with separate networks for mu and log kappa, which can be trained one after the other."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models._card import Card, model_card
from aureole.models._heads import MAX_LOG_KAPPA
from aureole.models._networks import at_least_float32, last_linear, whiten_last_layer
from aureole.models._saving import (
    BACKBONES,
    CUSTOM,
    LARGEST_LAYER,
    build,
    check_weights,
    describe,
    load_folder,
    save_folder,
)
from aureole.sphere import normalize

Part = Literal["mu", "kappa", "joint"]
_FORMAT = "aureole-independent-encoder-1"
_NETWORKS = ("location", "certainty")
_USAGE = (
    "from aureole.models import IndependentEncoder",
    "",
    'encoder = IndependentEncoder.load("folder")',
    "posterior = encoder(inputs)  # posterior.mu, posterior.kappa",
)


class IndependentEncoder(nn.Module):
    r"""Two networks: :math:`\hat\mu(x) = f(\bar x)/|f(\bar x)|` and :math:`\log\hat\kappa(x) = b + g(\bar x)`.

    ``initialise`` sets the standardisation of the inputs, :math:`\bar x`, and both last layers. log kappa is clamped at
    log 1e8. While the part "mu" is trained, all inputs share one kappa, e^b, which is learned too.

    Parameters
    ----------
    location, certainty
        Networks f, with D outputs, and g, with one output.
    n_in
        The number of features of an input.
    kappa
        Initial value of e^b.
    hold_kappa
        Keep e^b fixed while "mu" is trained. Monte Carlo losses with few samples need it: while mu is wrong, they push
        kappa to infinity.
    """

    floor = 0.0  # of kappa
    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        location: nn.Module,
        certainty: nn.Module,
        *,
        n_in: int,
        kappa: float = 10.0,
        hold_kappa: bool = False,
    ) -> None:
        super().__init__()
        self.location, self.certainty = location, certainty
        self.log_kappa = nn.Parameter(torch.tensor(math.log(kappa)))
        self.register_buffer("centre", torch.zeros(n_in))
        self.register_buffer("scale", torch.ones(n_in))
        self.hold_kappa = hold_kappa
        self.enter("joint")

    def forward(self, x: Float[Tensor, "*batch n"]) -> VonMisesFisher:
        """The posteriors of inputs, in float32 even where hidden layers run in bfloat16."""
        x = (x - self.centre) / self.scale
        mu, deviation = self._outputs(x)
        log_kappa = self.log_kappa + at_least_float32(deviation).squeeze(-1)
        kappa = self.floor + torch.exp(log_kappa.clamp(max=MAX_LOG_KAPPA))
        return VonMisesFisher(normalize(at_least_float32(mu)), kappa, validate_args=False)

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        deviation = self.certainty(x) if self.part != "mu" else x.new_zeros(*x.shape[:-1], 1)
        return self.location(x), deviation

    def enter(self, part: str) -> None:
        """Train only this part from now on: "mu", "kappa" or "joint"."""
        if part not in ("mu", "kappa", "joint"):
            raise InvalidInputError(f"an encoder trains 'mu', 'kappa' or 'joint', not {part!r}.")
        self.part: Part = part
        self.location.requires_grad_(part != "kappa")
        self.certainty.requires_grad_(part != "mu")
        self.log_kappa.requires_grad_(part != "mu" or not self.hold_kappa)

    def parameter_groups(self, lr: float) -> Iterator[dict]:
        """What the current part trains, with learning rates: ten times higher for the one shared log kappa."""
        if self.log_kappa.requires_grad:
            yield {"params": [self.log_kappa], "lr": 10 * lr}
        for network in (self.location, self.certainty):
            chosen = [p for p in network.parameters() if p.requires_grad]
            if chosen:
                yield {"params": chosen, "lr": lr}

    @torch.no_grad()
    def standardise(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Set the standardisation on a sample of inputs, and return them standardised.

        A feature whose standard deviation is below a millionth of the largest is dead, as some features of real
        encoders are. It gets the largest scale, so that a later vector in which it is active is not an outlier.
        """
        spread = x.std(0)
        most = spread.max() if bool(spread.max() > 0) else spread.new_ones(())
        self.centre.copy_(x.mean(0))
        self.scale.copy_(torch.where(spread > 1e-6 * most, spread, most))
        return (x - self.centre) / self.scale

    @torch.no_grad()
    def initialise(self, x: Float[Tensor, "n d"]) -> None:
        """Set the standardisation, whiten mu's outputs and flatten kappa's, on a sample of inputs.

        Without it all mu start in nearly one direction, and training needs a thousand steps to spread them.
        """
        standard = self.standardise(x)
        whiten_last_layer(self.location, standard)
        last = last_linear(self.certainty)
        last.weight.mul_(0.1)
        last.bias.zero_()

    def save(self, folder: Path | str, *, card: Card | None = None) -> Path:
        """Write ``config.json``, ``weights.safetensors`` and ``README.md`` into a folder, and return it.

        Both networks must be library backbones, such as ``ResidualMLP``.

        Examples
        --------
        >>> import tempfile
        >>> from aureole.models import ResidualMLP
        >>> encoder = IndependentEncoder(ResidualMLP(4, 3, width=8), ResidualMLP(4, 1, width=8), n_in=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = IndependentEncoder.load(encoder.save(folder))
        >>> x = torch.randn(5, 4)
        >>> torch.equal(again(x).kappa, encoder(x).kappa)
        True
        """
        networks = {name: describe(getattr(self, name), BACKBONES) for name in _NETWORKS}
        kinds = [network["kind"] for network in networks.values()]
        if type(self) is not IndependentEncoder or CUSTOM in kinds:
            raise InvalidInputError(
                f"{type(self).__name__} cannot be rebuilt from numbers; save its state_dict instead."
            )
        config = {"format": _FORMAT, "n_in": len(self.centre), **networks}
        dim = networks["location"]["n_out"]
        text = model_card(card or Card(), format=_FORMAT, dim=dim, usage=_USAGE)
        return save_folder(folder, config, self.state_dict(), card=text)

    @staticmethod
    def load(folder: Path | str) -> "IndependentEncoder":
        """The encoder saved in a folder, in ``eval`` mode and frozen; its weights are checked before they are used."""
        config, weights = load_folder(folder, format=_FORMAT)
        n_in = config.get("n_in")
        if type(n_in) is not int or not 1 <= n_in <= LARGEST_LAYER:
            raise InvalidInputError(f"the config in {folder} is damaged: n_in is {str(n_in)[:50]}.")

        def assembled(device: str | None = None) -> IndependentEncoder:
            networks = (build(config.get(name), BACKBONES, device=device) for name in _NETWORKS)
            return IndependentEncoder(*networks, n_in=n_in)

        check_weights(weights, assembled("meta").state_dict())
        encoder = assembled()
        encoder.load_state_dict(weights)
        return encoder.requires_grad_(False).eval()
