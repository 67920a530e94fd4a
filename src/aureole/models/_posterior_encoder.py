"""A posterior encoder: any backbone, and a head that makes posteriors of its features."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models._blueprint import BACKBONES, CUSTOM, HEADS, Kind, build, describe, outline
from aureole.models._card import Card, model_card
from aureole.models._heads import MixtureHead
from aureole.models._saving import check_weights, load_folder, save_folder

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
        Any module whose output the head takes: features [n, n_in]. ``models.ImageFeatures`` and ``models.TextFeatures``
        make one of a timm or a transformers model.
    head
        Returns posteriors, as ``KappaFromNorm`` does.
    head_rate
        How many times the backbone's learning rate the head has: more than 1 where the backbone is pretrained.
    card
        What is to be said of the encoder where it is saved: data, kappa_pos, measured coverage.

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

    def forward(self, *inputs: Any, **options: Any) -> VonMisesFisher | MixtureVMF:
        """The posteriors of inputs, which go to the backbone as they are."""
        features = self.backbone(*inputs, **options)
        if not isinstance(features, Tensor):
            raise InvalidInputError(
                f"the backbone {type(self.backbone).__name__} must return features, a tensor [n, n_in], but returned "
                f"{type(features).__name__}. Wrap a transformers model as models.TextFeatures(model)."
            )
        return self.head(features)

    def enter(self, part: str) -> None:
        """Check that both mu and kappa are to be trained: they come from one embedding.

        A ``MixtureHead`` can also train "mu", with all its components as one.
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

        The networks of ``models.blueprint`` are written as their kind and numbers, so that ``load`` can build them. Of
        any other only the weights are written, and ``load`` needs the module itself.

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
        own = [name for name in ("backbone", "head") if config[name]["kind"] == CUSTOM]
        networks = "".join(f", {name}=my_{name}" for name in own)
        text = model_card(
            self.card,
            format=_FORMAT,
            dim=_dim(self.head),
            usage=[line.format(networks=networks) for line in _USAGE],
        )
        return save_folder(folder, config, self.state_dict(), card=text)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        backbone: nn.Module | None = None,
        *,
        head: nn.Module | None = None,
    ) -> "PosteriorEncoder":
        """The encoder that was saved in a folder, in ``eval`` mode.

        A file from anywhere is safe: it holds numbers alone, which are checked before memory is given to them. The
        names in it are looked up in ``models.blueprint`` and nowhere else.

        Parameters
        ----------
        folder
            Where it was saved.
        backbone, head
            Networks of the same make as those that were saved, which take the saved weights. Needed where they are not
            of ``models.blueprint``.
        """
        config, weights = load_folder(folder, format=_FORMAT)
        try:
            blueprints = {"backbone": config["backbone"], "head": config["head"]}
            rate, card = config["head_rate"], Card.from_json(config["card"])
        except KeyError as error:
            raise InvalidInputError(f"the config in {folder} has no entry {error}.") from error
        if type(rate) not in (int, float) or not 0 < rate < math.inf:
            raise InvalidInputError(
                f"head_rate in {folder} must be a positive number, but is {str(rate)[:50]}."
            )
        parts = (
            (backbone, "backbone", blueprints["backbone"], BACKBONES),
            (head, "head", blueprints["head"], HEADS),
        )
        sketch = [
            _outline(name, blueprint, known) if given is None else given
            for given, name, blueprint, known in parts
        ]
        check_weights(weights, cls(*sketch).state_dict())
        networks = [
            build(blueprint, known) if given is None else given
            for given, _, blueprint, known in parts
        ]
        encoder = cls(*networks, head_rate=float(rate), card=card)
        encoder.load_state_dict(weights)
        return encoder.eval()


def _outline(name: str, blueprint: Any, known: Mapping[str, Kind]) -> nn.Module:
    """The network without its weights, or an error that asks for the network."""
    if isinstance(blueprint, dict) and blueprint.get("kind") == CUSTOM:
        raise InvalidInputError(
            f"the encoder was saved with a {name} of the class {str(blueprint.get('class'))[:50]!r}, which cannot be "
            f"rebuilt from numbers. Make one yourself and pass it: load(folder, {name}=module)."
        )
    return outline(blueprint, known)


def _dim(head: nn.Module) -> int:
    """The D of a head's posteriors: that of its blueprint, or its attribute ``dim``."""
    found = describe(head, HEADS).get("dim", getattr(head, "dim", None))
    if not isinstance(found, int):
        raise InvalidInputError(
            f"the head {type(head).__name__} does not say on which sphere its posteriors lie: give it an attribute dim."
        )
    return found
