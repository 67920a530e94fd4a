"""Pretrained models: heads packaged with the library, and models on the Hugging Face hub.

The only file that imports huggingface_hub, and only when a model is pushed or fetched: its ``PyTorchModelHubMixin``
would make it a dependency of every model.
"""

import tempfile
from pathlib import Path
from typing import Any, TypeVar

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.models._saving import CARD, CONFIG, WEIGHTS

MINILM_CAPTIONS = Path(__file__).parent / "minilm_captions"
# the heads that come with the library: every function and option that takes a head takes these names
PACKAGED_HEADS = {"minilm-captions": MINILM_CAPTIONS}


def find_model(name: Path | str) -> Path:
    """Return the folder of a model: an existing path, or a packaged head by its name.

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


Model = TypeVar("Model", bound="HubModel")


class HubModel:
    """A model with ``save`` and ``load`` that can be pushed to the hub and fetched from there."""

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        message: str = "Push a model of aureole",
    ) -> str:
        """Upload config, weights and card to the repository "owner/name", and return the URL of the commit.

        The repository is created if it does not exist; ``private`` says how (default: the owner's setting).
        ``token`` (default: that of ``hf auth login``), ``revision`` (a branch) and ``message`` are those of
        huggingface_hub.
        """
        api = _hub().HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)  # type: ignore[attr-defined]
            repository = api.create_repo(repo_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository.repo_id,
                folder_path=folder,
                commit_message=message,
                revision=revision,
                allow_patterns=[CONFIG, WEIGHTS, CARD],
            )
        return commit.commit_url

    @classmethod
    def from_pretrained(
        cls: type[Model],
        repo_id: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: Path | str | None = None,
        **networks: Any,
    ) -> Model:
        """Return the model in the repository "owner/name", as ``load`` returns that of a folder.

        Only ``config.json`` and ``weights.safetensors`` are downloaded, and both are checked like those of a folder.
        Pin ``revision`` to a commit to always get the same weights. ``networks`` are passed to ``load``.
        """
        hub = _hub()
        errors = hub.errors
        try:
            folder = hub.snapshot_download(
                repo_id,
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                allow_patterns=[CONFIG, WEIGHTS],
            )
        except (
            errors.HFValidationError,
            errors.LocalEntryNotFoundError,
            errors.HfHubHTTPError,  # missing repository or revision, or no access
        ) as error:
            raise InvalidInputError(
                f"{repo_id!r} is not a reachable repository: {error}"
            ) from error
        return cls.load(folder, **networks)  # type: ignore[attr-defined]


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingPackageError(
            "the hub needs huggingface_hub: pip install 'aureole[hub]'."
        ) from error
    return huggingface_hub
