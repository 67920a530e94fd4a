"""The encoder's turn: inputs of many requests, decoded beside it, become its batches."""

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aureole.data import blur_pictures, deteriorate
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.scale import Embedder
from aureole.serve._batching import Batcher
from aureole.serve._caps import CapTable
from aureole.serve._failures import shielded
from aureole.serve._faults import Fault
from aureole.serve._hosted import HostedEmbedder, HostGoneError


@dataclass(frozen=True)
class Embedded:
    """A posterior of batch shape (), and the least cosines of its credible caps of ``MASSES``."""

    posterior: VonMisesFisher
    cosines: list[float]


class Encoder:
    """A model behind a queue: one thread decodes, one embeds."""

    def __init__(
        self,
        embedder: Embedder,
        *,
        largest: int = 32,
        room: int = 1024,
        seen: Callable[[int, float], None] | None = None,
    ) -> None:
        self.embedder = embedder
        self._caps = CapTable(embedder.dim)
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="aureole-decoder")
        self._batcher: Batcher[Any, Embedded] = Batcher(
            self._work,
            name="encoder",
            largest=largest,
            room=room,
            # one batch is sent while another is computed
            threads=2 if isinstance(embedder, HostedEmbedder) else 1,
            seen=seen,
        )

    async def embed(
        self, kind: str, inputs: Sequence[Any], *, crop: float = 1.0, blur: float = 0.0
    ) -> list["Embedded"]:
        """What inputs of a kind, "text", "vector" or "image" in base64, are to the encoder."""
        wanted = self.embedder.modality
        if kind != wanted:
            raise Fault(
                "invalid_input",
                f"the encoder of this service takes {wanted}s, not {kind}s.",
                field=kind,
            )
        with shielded("encoder"):
            if kind == "image":
                loop = asyncio.get_running_loop()
                prepared = [
                    await loop.run_in_executor(self._decoder, self._prepare, one, crop, blur)
                    for one in inputs
                ]
            else:
                prepared = [self.embedder.prepare(one) for one in inputs]
            if len(prepared) == 1:
                return [await self._batcher.submit(prepared[0])]
            return list(await asyncio.gather(*(self._batcher.submit(one) for one in prepared)))

    def waiting(self) -> int:
        """How many inputs wait."""
        return len(self._batcher)

    def close(self) -> None:
        """Work off what waits, and stop."""
        self._batcher.close()
        self._decoder.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, text: str, crop: float, blur: float) -> Any:
        return spoil(self.embedder.prepare(decode_picture(text)), crop, blur)

    def _work(self, prepared: list[Any]) -> list["Embedded | BaseException"]:
        """The posteriors of a batch; where it fails, of each input on its own."""
        try:
            found, cosines = self._embedded(prepared)
        except HostGoneError as error:  # each on its own would only kill the next process
            return [error] * len(prepared)
        except Exception as error:
            if len(prepared) == 1:
                return [error]
            return [self._work([one])[0] for one in prepared]
        parts = zip(found.mu.unbind(0), found.kappa.unbind(0), cosines, strict=True)
        return [
            Embedded(VonMisesFisher(mu, kappa, validate_args=False), cosine)
            for mu, kappa, cosine in parts
        ]

    def _embedded(self, prepared: list[Any]) -> tuple[VonMisesFisher, list[list[float]]]:
        """(Posteriors, least cosines of their credible caps), by the encoder's process where it has one."""
        if isinstance(self.embedder, HostedEmbedder):
            return self.embedder.embed_with_cosines(prepared)
        found = self.embedder.embed(prepared)
        return found, self._caps(found.kappa)


def decode_picture(text: str) -> bytes:
    r"""The bytes of a text in base64; what a browser puts before it (``data:image/png;base64,``) may be there.

    Examples
    --------
    >>> decode_picture("data:image/png;base64,iVBORw==")
    b'\x89PNG'
    """
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"the picture is not in base64: {error}.") from error


def spoil(picture: Tensor, crop: float, blur: float) -> Tensor:
    """A picture uint8 [3, h, w] cropped to the middle share of its side and enlarged again, then blurred."""
    if crop < 1:
        picture = deteriorate(picture[None], torch.tensor([crop]))[0]
    if blur > 0:
        picture = blur_pictures(picture[None], torch.tensor([blur]))[0]
    return picture
