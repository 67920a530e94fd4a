"""Posterior encoders: any backbone with a head."""

import math
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models._card import Card, model_card
from aureole.models._heads import MixtureHead
from aureole.models._saving import (
    BACKBONES,
    CUSTOM,
    HEADS,
    build,
    check_weights,
    describe,
    load_folder,
    save_folder,
)

_FORMAT = "aureole-posterior-encoder-1"
_USAGE = (
    "import aureole as au",
    "",
    'encoder = au.PosteriorEncoder.load("folder"{networks})',
    "posterior = encoder(inputs)  # posterior.mu, posterior.kappa",
)


class PosteriorEncoder(nn.Module):
    """``head(backbone(inputs))``, a posterior per input.

    Parameters
    ----------
    backbone
        Any module whose output the head takes: features [n, n_in]. A model of timm needs
        ``num_classes=0``, one of transformers ``models.TextFeatures``.
    head
        Maps features to posteriors, such as ``KappaFromNorm``.
    head_rate
        Learning rate of the head as a multiple of the backbone's (default 1); use more for a pretrained backbone.
    card
        What its README.md reports when it is saved: data, kappa_pos, measured coverage.

    Examples
    --------
    >>> import torch
    >>> from aureole.models import CifarResNet, KappaFromNorm
    >>> encoder = PosteriorEncoder(CifarResNet(20), KappaFromNorm(64, 16))
    >>> encoder(torch.zeros(2, 3, 32, 32)).mu.shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        *,
        head_rate: float = 1.0,
        card: Card | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.head_rate = backbone, head, head_rate
        self.card = Card() if card is None else card

    def forward(self, *inputs: object, **named_inputs: object) -> VonMisesFisher | MixtureVMF:
        """The posteriors of inputs, which are passed to the backbone unchanged."""
        features = self.backbone(*inputs, **named_inputs)
        if not isinstance(features, Tensor):
            raise InvalidInputError(
                f"the backbone {type(self.backbone).__name__} must return features, a tensor [n, n_in], but returned "
                f"{type(features).__name__}. Wrap a transformers model: models.TextFeatures(model)."
            )
        return self.head(features)

    def enter(self, part: str) -> None:
        """Accept the part "joint" only, since mu and kappa come from one embedding.

        A ``MixtureHead`` can also train "mu", with all its components merged into one.
        """
        if isinstance(self.head, MixtureHead):
            self.head.enter(part)
        elif part != "joint":
            raise InvalidInputError(
                f"{type(self).__name__} has one embedding for mu and kappa and trains them jointly, not {part!r} alone."
            )

    def parameter_groups(self, lr: float) -> Iterator[dict]:
        """The parameters to train with their learning rates."""
        for module, rate in ((self.backbone, lr), (self.head, lr * self.head_rate)):
            chosen = [p for p in module.parameters() if p.requires_grad]
            if chosen:
                yield {"params": chosen, "lr": rate}

    def save(self, folder: Path | str) -> Path:
        """Write ``config.json``, ``weights.safetensors`` and ``README.md`` into a folder, and return it.

        A backbone or head of this library is described in the config, so that ``load`` can rebuild it. Of any other
        module only the weights are written, and you must pass the module to ``load``.

        Examples
        --------
        >>> import tempfile, torch
        >>> from aureole.models import KappaFromNorm, ResidualMLP
        >>> card = Card(name="Toy", kappa_pos=20.0)
        >>> encoder = PosteriorEncoder(ResidualMLP(5, 8), KappaFromNorm(8, 3), card=card).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = PosteriorEncoder.load(encoder.save(folder))
        >>> x = torch.randn(4, 5)
        >>> torch.equal(again(x).kappa, encoder(x).kappa), again.card.kappa_pos
        (True, 20.0)
        """
        config = {
            "format": _FORMAT,
            "backbone": describe(self.backbone, BACKBONES),
            "head": describe(self.head, HEADS),
            "head_rate": float(self.head_rate),
            "card": self.card.as_json(),
        }
        custom = [name for name in ("backbone", "head") if config[name]["kind"] == CUSTOM]
        networks = "".join(f", {name}=my_{name}" for name in custom)
        usage = [line.format(networks=networks) for line in _USAGE]
        text = model_card(self.card, format=_FORMAT, dim=_dim(self.head), usage=usage)
        return save_folder(folder, config, self.state_dict(), card=text)

    @classmethod
    def load(
        cls, folder: Path | str, backbone: nn.Module | None = None, *, head: nn.Module | None = None
    ) -> "PosteriorEncoder":
        """The encoder saved in a folder, in ``eval`` mode.

        Untrusted files are safe: they hold numbers only, whose shapes are checked before memory is allocated, and
        nothing is imported by name.

        Parameters
        ----------
        folder
            Where it was saved.
        backbone, head
            Modules with the same architecture as those that were saved, which receive the saved weights. Required for
            modules that are not of this library.
        """
        config, weights = load_folder(folder, format=_FORMAT)
        missing = [key for key in ("backbone", "head", "head_rate", "card") if key not in config]
        if missing:
            raise InvalidInputError(f"the config in {folder} has no entry {missing[0]!r}.")
        rate, card = config["head_rate"], Card.from_json(config["card"])
        if type(rate) not in (int, float) or not 0 < rate < math.inf:
            got = str(rate)[:50]
            raise InvalidInputError(f"head_rate in {folder} must be a positive number, not {got}.")

        for name, given in (("backbone", backbone), ("head", head)):
            kind = config[name]
            if given is None and isinstance(kind, dict) and kind.get("kind") == CUSTOM:
                raise InvalidInputError(
                    f"the encoder was saved with a {name} of the class {str(kind.get('class'))[:50]!r}, which cannot "
                    f"be rebuilt from numbers. Create one yourself and pass it: load(folder, {name}=module)."
                )

        def assembled(device: str | None = None) -> "PosteriorEncoder":
            parts = (("backbone", backbone, BACKBONES), ("head", head, HEADS))
            networks = (
                build(config[name], kinds, device=device) if given is None else given
                for name, given, kinds in parts
            )
            return cls(*networks, head_rate=float(rate), card=card)

        check_weights(weights, assembled("meta").state_dict())  # before any memory is allocated
        encoder = assembled()
        encoder.load_state_dict(weights)
        return encoder.eval()


def _dim(head: nn.Module) -> int:
    """The D of a head's posteriors, from its description or its attribute ``dim``."""
    dim = describe(head, HEADS).get("dim", getattr(head, "dim", None))
    if not isinstance(dim, int):
        raise InvalidInputError(
            f"the head {type(head).__name__} needs an attribute dim, the dimension of its posteriors, to be saved."
        )
    return dim
