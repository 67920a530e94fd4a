"""Fitted heads that come with the package: folders for ``FrozenHead.load``; what they are is in their README.md."""

from pathlib import Path

__all__ = ["MINILM_CAPTIONS"]

MINILM_CAPTIONS = Path(__file__).parent / "minilm_captions"
