"""Models on the Hugging Face hub: pushed with their card, and fetched as numbers alone.

The only file that imports huggingface_hub, and only when one of its functions is called.
"""

import tempfile
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.models._saving import CARD, CONFIG, WEIGHTS


@runtime_checkable
class Saveable(Protocol):
    """A model with ``save`` and ``load``, such as ``PosteriorEncoder`` and ``FrozenHead``."""

    def save(self, folder: Path | str) -> Path:
        """Write the model into a folder."""
        ...

    @classmethod
    def load(cls, folder: Path | str) -> Any:
        """The model that was saved in a folder."""
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
    """The address of the commit in which a model was put into a repository, which is made if need be.

    Its config, its weights and its card are pushed, and nothing else.

    Parameters
    ----------
    model
        What to push.
    repo_id
        As "owner/name".
    private
        Whether a new repository is private; by default as the owner has set it.
    token
        By default that of ``hf auth login``.
    revision
        The branch; by default the main one.
    message
        Of the commit.
    """
    api = _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        made = api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=made.repo_id,
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
    **networks: Any,
) -> Model:
    """The model of a repository of the hub, or of a folder: ``from_pretrained(PosteriorEncoder, "owner/name")``.

    Of a repository only ``config.json`` and ``weights.safetensors`` are fetched, and both are checked as those of a
    folder are.

    Parameters
    ----------
    kind
        The class of the model.
    repo_or_folder
        As "owner/name", or a folder that is there.
    revision
        A branch, tag or commit; name a commit to always have the same weights.
    token, cache_dir
        As huggingface_hub has them.
    **networks
        Passed to ``kind.load``, as ``backbone=module``.

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
            f"{kind.__name__} has no load: pass PosteriorEncoder or FrozenHead."
        )
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
        hub.errors.HfHubHTTPError,  # there is no such repository or revision, or it is not for everyone
    ) as error:
        raise InvalidInputError(
            f"{str(repo_or_folder)!r} is neither a folder that is there nor a repository that can be reached: {error}"
        ) from error
    return load(folder, **networks)


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingPackageError(
            "the hub needs the package huggingface_hub: pip install 'aureole[hub]'."
        ) from error
    return huggingface_hub
