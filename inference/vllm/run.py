"""A run of a session on vLLM, and which runs may stop behind a token and go on later."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inference.sampling import output_schema
from inference.vllm.offload import OffloadPlan
from sessions.model.generation import Chunk, GenerationRequest
from sessions.model.types import SessionKey

if TYPE_CHECKING:
    from inference.vllm.images import PlacedImage


class VllmRun:
    """A run of a session on vLLM."""

    __slots__ = ("emitted", "images", "key", "lost", "name", "named", "paused", "plan", "prompt", "scope", "started")

    def __init__(
        self,
        key: SessionKey,
        name: str,
        prompt: array.array[int],
        scope: bytes,
        images: Sequence[PlacedImage] = (),
        named: int = -1,
    ) -> None:
        """`named`: how many leading tokens tell which KV belongs to them; all if negative."""
        self.key = key
        self.name = name
        self.prompt = prompt
        self.scope = scope
        self.images = images
        self.named = named
        self.plan: OffloadPlan | None = None
        self.started = False
        self.paused = False  # whether it made room; another run then goes on where it stopped
        self.lost = False  # vLLM has died under it
        self.emitted: array.array[int] = array.array("I")

    @property
    def known(self) -> array.array[int]:
        return self.prompt + self.emitted

    @property
    def kept(self) -> array.array[int]:
        """The leading tokens whose KV may leave the device."""
        return self.known if self.named < 0 else self.known[: self.named]


def can_pause(request: GenerationRequest) -> bool:
    """Returns whether an answer is unchanged if it is stopped behind a token and continued: a grammar costs a replay,
    and vLLM counts for its penalties only what a run decoded itself."""
    sampling = request.sampling
    return output_schema(request) is None and not (sampling.presence_penalty or sampling.frequency_penalty)


def is_whole(chunk: Chunk) -> bool:
    """Returns whether a chunk's text ends with its tokens. Several tokens that came together may end within a
    character."""
    return len(chunk.tokens) == 1 and bool(chunk.text)
