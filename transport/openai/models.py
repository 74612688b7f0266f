"""What a client may know of the models: `/v1/models`, and whether a request names one that is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sessions.errors import BadInput, NotFound
from sessions.ports import EngineInfo
from sessions.types import Json, Sampling


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it is served here. `sampling` None: not known in this process, and nothing is refused for it."""

    id: str
    created: int = 0  # unix seconds
    context_window: int | None = None
    sampling: frozenset[str] | None = None
    tools: bool = False
    price: dict[str, float] | None = None  # per million tokens: input, cached_input, output

    def check(self, sampling: Sampling, *, format_param: str) -> None:
        """Raises BadInput for what the engine would leave out although it changes what the answer is."""
        known = self.sampling
        if known is None:
            return
        if sampling.text is not None and "text" not in known:
            raise BadInput(
                "unsupported_parameter", f"The model {self.id!r} has no structured output.", param=format_param
            )
        if sampling.logprobs and "logprobs" not in known:
            raise BadInput("unsupported_parameter", f"The model {self.id!r} gives no logprobs.", param="logprobs")

    def public(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": "sessile",
            "context_window": self.context_window,
            "capabilities": {
                "tools": self.tools,
                "structured_output": self.sampling is None or "text" in self.sampling,
                "logprobs": self.sampling is None or "logprobs" in self.sampling,
            },
            "price": self.price,
        }


Models = Callable[[], Sequence[ModelCard]]


def card_of(info: EngineInfo, *, created: int = 0) -> ModelCard:
    """The card of the engine in this process."""
    return ModelCard(
        id=info.model,
        created=created,
        context_window=info.context_window,
        sampling=info.sampling,
        tools=info.tool_format != "none",
    )


def card(models: Models, name: str | None) -> ModelCard:
    """The card of a model by name, or of the first. Raises NotFound."""
    cards = models()
    for each in cards:
        if name is None or each.id == name:
            return each
    raise NotFound("model_not_found", f"The model {name!r} does not exist here.", param="model")
