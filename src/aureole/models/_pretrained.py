"""Pretrained models: heads packaged with the library, and models on the Hugging Face hub.

The only file that imports huggingface_hub, and only when one of its functions is called.
"""

import tempfile
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import nn

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.models._saving import CARD, CONFIG, WEIGHTS

MINILM_CAPTIONS = Path(__file__).parent / "minilm_captions"
# the heads that come with the library: every function and option that takes a head takes these names
PACKAGED_HEADS = {"minilm-captions": MINILM_CAPTIONS}


def find_model(name: Path | str) -> Path:
    """The folder of a model: an existing path, or a packaged head by its name.

    An existing path takes precedence. A path that does not exist is returned unchanged, so that the loader reports it.

    Examples
    --------
    >>> find_model("minilm-captions") == MINILM_CAPTIONS
    True
    >>> find_model("a/head").as_posix()
    'a/head'
    """
    path = Path(name)
    return path if path.exists() else PACKAGED_HEADS.get(str(name), path)


@runtime_checkable
class Saveable(Protocol):
    """A model with ``save`` and ``load``, such as ``PosteriorEncoder`` and ``FrozenHead``."""

    def save(self, folder: Path | str) -> Path:
        """Write the model into a folder."""
        ...

    @classmethod
    def load(cls, folder: Path | str) -> object:
        """The model saved in a folder."""
        ...


Model = TypeVar("Model")


def push_to_hub(
    model: Saveable,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    message: str = "Push a model of aureole",
) -> str:
    """Upload a model's config, weights and card to a repository, and return the URL of the commit.

    The repository is created if it does not exist.

    Parameters
    ----------
    model
        The model to upload.
    repo_id
        Such as "owner/name".
    private
        Whether a new repository is private (default: the owner's setting).
    token
        Access token (default: that of ``hf auth login``).
    revision
        Branch to push to (default: the main branch).
    message
        Commit message.
    """
    api = _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        repository = api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            commit_message=message,
            revision=revision,
            allow_patterns=[CONFIG, WEIGHTS, CARD],
        )
    return commit.commit_url


def from_pretrained(
    kind: type[Model],
    repo_or_folder: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | str | None = None,
    backbone: nn.Module | None = None,
    head: nn.Module | None = None,
) -> Model:
    """The model in a repository on the hub, or in a folder: ``from_pretrained(PosteriorEncoder, "owner/name")``.

    Only ``config.json`` and ``weights.safetensors`` are downloaded, and both are checked like those of a folder.

    Parameters
    ----------
    kind
        The class of the model.
    repo_or_folder
        Such as "owner/name", or an existing folder.
    revision
        A branch, tag or commit; pin a commit to always get the same weights.
    token, cache_dir
        Passed to huggingface_hub.
    backbone, head
        Passed to ``kind.load`` if given: custom modules that receive the saved weights.

    Examples
    --------
    >>> from aureole.models import KappaFromNorm, PosteriorEncoder, ResidualMLP
    >>> encoder = PosteriorEncoder(ResidualMLP(5, 8), KappaFromNorm(8, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = from_pretrained(PosteriorEncoder, encoder.save(folder))
    >>> type(again.head).__name__
    'KappaFromNorm'
    """
    load: Any = getattr(kind, "load", None)
    if load is None:
        raise InvalidInputError(
            f"{kind.__name__} has no load method: pass PosteriorEncoder or FrozenHead."
        )
    given = {"backbone": backbone, "head": head}
    networks = {name: network for name, network in given.items() if network is not None}
    if Path(repo_or_folder).is_dir():
        return load(repo_or_folder, **networks)
    hub = _hub()
    try:
        folder = hub.snapshot_download(
            str(repo_or_folder),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=[CONFIG, WEIGHTS],
        )
    except (
        hub.errors.HFValidationError,
        hub.errors.LocalEntryNotFoundError,
        hub.errors.HfHubHTTPError,  # missing repository or revision, or no access
    ) as error:
        raise InvalidInputError(
            f"{str(repo_or_folder)!r} is neither an existing folder nor a reachable repository: {error}"
        ) from error
    return load(folder, **networks)


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingPackageError(
            "the hub needs huggingface_hub: pip install 'aureole[hub]'."
        ) from error
    return huggingface_hub
