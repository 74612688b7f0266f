"""Lists the models that are served: `/v1/models`, and whether a request names one that is served."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sessions.model.errors import NotFound, Unavailable
from sessions.model.generation import EngineInfo, unhonoured_fields, unsupported_field, unsupported_tools
from sessions.model.types import Json, Sampling, Tool
from sessions.ports import Member, View
from sessions.routing.models_file import ModelsFile, PoolsNow

FORM: Final = ("text", "logprobs")
"""Sampling parameters that change the form of an answer: they are never ignored."""

NAMES_TOLD_MAX: Final = 12


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of a model in the models file; for an alias, `models` are the models that it stands for."""

    replicas: int
    quality: int | None = None
    size_b: float | None = None
    vision: bool = False
    models: tuple[str, ...] = ()


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as this server offers it. If `sampling` is None, it is not known which parameters the engine supports,
    and none is refused."""

    id: str
    aliases: tuple[str, ...] = ()  # other names that it is requested by
    notice: str | None = None  # what a person should know before relying on it
    created: int = 0  # unix seconds
    context_window: int | None = None
    sampling: frozenset[str] | None = None
    tools: bool = False
    foldings: tuple[str, ...] = ()
    thoughts: bool = False
    efforts: bool = False  # its reasoning has degrees of effort
    images: bool = False  # whether it sees them
    pool: PoolFacts | None = None  # as the models file has it

    def unhonoured(self, sampling: Sampling) -> list[str]:
        """Returns the parameters that a request sets and the engine does not support."""
        return [] if self.sampling is None else unhonoured_fields(sampling, self.sampling)

    def check(self, sampling: Sampling, tools: Sequence[Tool] = (), *, format_param: str) -> None:
        """Raises BadInput for parameters that the engine does not support and that change the answer's form."""
        if self.sampling is None:
            return
        if tools and not self.tools and sampling.tool_choice != "none":
            raise unsupported_tools(self.id)
        for name in self.unhonoured(sampling):
            if name in FORM:
                raise unsupported_field(self.id, name, param=format_param if name == "text" else name)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.id, *self.aliases)

    def public(self, name: str = "") -> dict[str, Json]:
        return {
            "id": name or self.id,
            "object": "model",
            "created": self.created,
            "owned_by": "sessile",
            "context_window": self.context_window,
            "capabilities": {
                "tools": self.tools,
                "structured_output": self.sampling is None or "text" in self.sampling,
                "logprobs": self.sampling is None or "logprobs" in self.sampling,
                "foldings": list(self.foldings),
                "reasoning": self.thoughts,
                "embedding": False,
            },
            "input_modalities": ["text", "image"] if self.images else ["text"],
            "output_modalities": ["text"],
            "notice": self.notice,
            "pool": msgspec.to_builtins(self.pool) if self.pool is not None else None,
        }


Models = Callable[[], Sequence[ModelCard]]


def card_of(info: EngineInfo, *, created: int = 0, notice: str | None = None) -> ModelCard:
    """Returns the card of the engine in this process."""
    return ModelCard(
        id=info.model,
        aliases=info.aliases,
        notice=notice,
        created=created,
        context_window=info.context_window,
        sampling=info.sampling,
        tools=info.takes_tools,
        foldings=info.foldings,
        thoughts=info.thoughts is not None,
        efforts=info.thoughts is not None and info.thoughts.efforts,
        images=info.images,
    )


class ModelCatalog:
    """The models of a cluster, as one gateway sees them in its view of the replicas. Implements `Models`.

    If the replicas of one model have different settings, the card promises only what all of them can do. A model whose
    replicas are all gone stays listed for `keep_s` seconds, so that requests get the retryable error `no_replica` while
    its only replica restarts, and not `model_not_found`."""

    def __init__(self, view: Callable[[], View], *, clock: Callable[[], float], created: int, keep_s: float = 600.0):
        self._view = view
        self._clock = clock
        self._created = created
        self._keep_s = keep_s
        self._looked_at: View | None = None
        self._cards: dict[str, tuple[ModelCard, float]] = {}  # with the time when it was served last

    def __call__(self) -> Sequence[ModelCard]:
        view, now = self._view(), self._clock()
        if view is not self._looked_at:
            self._looked_at = view
            served: dict[str, list[Member]] = {}
            for member in view.members:
                served.setdefault(member.model, []).append(member)
            for model in sorted(served):
                self._cards[model] = (self._common(model, served[model]), now)
            self._cards = {name: (card, at) for name, (card, at) in self._cards.items() if now - at < self._keep_s}
        return [card for card, _ in self._cards.values()]

    def _common(self, model: str, members: Sequence[Member]) -> ModelCard:
        engines = [member.engine for member in members if member.engine is not None]
        if len(engines) < len(members):
            return ModelCard(id=model, created=self._created)
        return ModelCard(
            id=model,
            aliases=tuple(sorted({name for engine in engines for name in engine.aliases})),
            created=self._created,
            context_window=min(engine.context_window for engine in engines),
            sampling=frozenset.intersection(*(engine.sampling for engine in engines)),
            tools=all(engine.takes_tools for engine in engines),
            foldings=tuple(sorted({name for engine in engines for name in engine.foldings})),
            thoughts=all(engine.thoughts is not None for engine in engines),
            efforts=all(engine.thoughts is not None and engine.thoughts.efforts for engine in engines),
            images=all(engine.images for engine in engines),
        )


class PooledModels:
    """Adds to the cards of `Models` what the models file says of each, and the file's aliases. The file's default model
    comes first."""

    def __init__(self, models: Models, pools: PoolsNow, replicas: Callable[[str], int]) -> None:
        self._models = models
        self._pools = pools
        self._replicas = replicas

    def __call__(self) -> Sequence[ModelCard]:
        cards, file = self._models(), self._pools().file
        if not file.models:
            return cards
        own = {each.id: self._with_facts(each, file) for each in cards}
        aliases = (self._alias(alias, own, file) for alias in file.aliases)
        every = [*own.values(), *(each for each in aliases if each is not None)]
        return sorted(every, key=lambda each: file.default not in each.names)

    def _with_facts(self, card: ModelCard, file: ModelsFile) -> ModelCard:
        model = file.models.get(card.id)
        if model is None:
            return card
        facts = PoolFacts(
            replicas=self._replicas(card.id), quality=model.quality, size_b=model.size_b, vision=model.vision
        )
        windows = [each for each in (card.context_window, model.window) if each is not None]
        tools = card.tools and model.tools is not False
        sampling = card.sampling
        if sampling is not None and model.json is False:
            sampling -= {"text"}
        window = min(windows, default=None)
        return msgspec.structs.replace(card, pool=facts, context_window=window, tools=tools, sampling=sampling)

    def _alias(self, alias: str, own: dict[str, ModelCard], file: ModelsFile) -> ModelCard | None:
        """Returns the card of an alias, which promises whatever at least one of its models can do, because routing
        sends each turn to a suitable one. None if none of its models is served."""
        members = [own[name] for name in file.members(alias) if name in own]
        if not members or alias in own:
            return None
        known = [each.sampling for each in members if each.sampling is not None]
        every = frozenset[str]().union(*known) if len(known) == len(members) else None
        replicas = sum(each.pool.replicas for each in members if each.pool is not None)
        return ModelCard(
            id=alias,
            created=members[0].created,
            context_window=max((each.context_window or 0 for each in members), default=0) or None,
            sampling=every,
            tools=any(each.tools for each in members),
            images=any(each.images for each in members),
            pool=PoolFacts(replicas=replicas, models=tuple(each.id for each in members)),
        )


def card(models: Models, name: str | None) -> ModelCard:
    """Returns the card of the model or alias `name`, first compared exactly, then without regard to case; the first
    card if `name` is None. Raises NotFound, and Unavailable if no model is served yet."""
    cards = models()
    if not cards:
        raise Unavailable("no_replica", "No replica has joined yet.", retry_after_ms=1_000)
    for each in cards:
        if name is None or name in each.names:
            return each
    names = {own.lower(): each for each in reversed(cards) for own in each.names}
    found = names.get(str(name).lower())
    if found is not None:
        return found
    raise NotFound("model_not_found", f"The model {name!r} does not exist here{_hint(cards, str(name))}", param="model")


def _hint(cards: Sequence[ModelCard], name: str) -> str:
    """Returns the end of an error message: the names of served models and the nearest one. With a models file, which
    may hide models from a tenant, it names none."""
    if any(each.pool is not None for each in cards):
        return "; `GET /v1/models` lists those that you may use."
    names = [own for each in cards for own in each.names]
    near = difflib.get_close_matches(name.lower(), [own.lower() for own in names], 1)
    meant = next((f" Did you mean {own!r}?" for own in names if near == [own.lower()]), "")
    return f"; served: {', '.join(names[:NAMES_TOLD_MAX])}.{meant}"
