"""Combines two engines into one: a model, and a smaller one of its family that answers under brownout.

A request names who is to write it (`GenerationRequest.model`). Both have the same tokens and the same template, so a
session's ledger is good for both; anything else is refused at the start. Sessions, placement and whatever is kept of a
session's KV are the model's own; the smaller one has what its slots hold and nothing below them, no host memory, disk,
Redis or peer, so that no byte of one model's KV is ever read by the other. A turn that goes back to the model finds
there what it had: only what was added meanwhile is computed.

What one of them holds of a session and the other does not is computed by the other: forecasts count with it.
(Switching models under load: Zhang et al., "Model-Switching: Dealing with Fluctuating Workloads in
Machine-Learning-as-a-Service Systems", HotCloud 2020.)

Does not know when the smaller one is used (`sessions.actor.admission`), nor what either engine is.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from sessions.limits import Forecast, Holdings, HoldsKV, Share
from sessions.model.errors import BadInput, Unavailable
from sessions.model.generation import (
    Chunk,
    EngineInfo,
    EngineStats,
    Finish,
    GenerationRequest,
    KVExport,
    KVPlace,
    TokenScore,
    unsupported_scores,
)
from sessions.model.types import ResponseId, Sampling, SessionKey, TenantId, Tokens
from sessions.ports import ChecksSampling, Engine, ScoresPrompts, Tokenizer

__all__ = ["BrownoutEngine", "make_brownout_engine"]


class BrownoutEngine:
    """An engine of a model and a smaller one, as one `Engine`. Made by `make_brownout_engine`."""

    def __init__(self, main: Engine, smaller: Callable[[EngineInfo], Engine]) -> None:
        """`smaller` makes the smaller model's engine from the description of the started main one."""
        self.main = main
        self._make_smaller = smaller
        self._smaller: Engine | None = None
        self._info: EngineInfo  # set by `start`

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def smaller(self) -> Engine:
        """The smaller model's engine; there is one after `start`."""
        assert self._smaller is not None
        return self._smaller

    @property
    def tokenizer(self) -> Tokenizer:
        return self.main.tokenizer

    def stats(self) -> EngineStats:
        main, smaller = self.main.stats(), self.smaller.stats()
        return msgspec.structs.replace(main, smaller=smaller, away=main.away or smaller.away)

    def place(self, key: SessionKey) -> KVPlace:
        return self.main.place(key)

    def held_sessions(self) -> set[SessionKey]:
        return self.main.held_sessions() | self.smaller.held_sessions()

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts both engines. Raises what either raises, and BadInput where the two do not go together."""
        await self.main.start()
        try:
            smaller = self._make_smaller(self.main.info)
            await _start_smaller(smaller)
            try:
                check_compatible(self.main, smaller)
            except BaseException:
                await smaller.close()
                raise
        except BaseException:
            await self.main.close()
            raise
        self._smaller = smaller
        self._info = msgspec.structs.replace(self.main.info, smaller=smaller.info)

    async def close(self) -> None:
        both = (self.main, self._smaller)
        await asyncio.gather(*(engine.close() for engine in both if engine is not None))

    # -- generating ------------------------------------------------------------------------------------

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        engine = self._of(request.model)[0] if self._smaller is not None else self.main
        return engine.generate(request)

    def check_sampling(self, sampling: Sampling) -> None:
        if isinstance(self.main, ChecksSampling):
            self.main.check_sampling(sampling)

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        """Scores a prompt by the main model, whichever of the two answers turns at the moment."""
        if not isinstance(self.main, ScoresPrompts):
            raise unsupported_scores(self.info.model)
        return await self.main.score(prompt, top)

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        return await self.main.warm(key, prompt, background=background)

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        return self.main.tools_called(key, tools)

    async def release(self, key: SessionKey) -> None:
        try:
            await self.smaller.release(key)
        finally:
            await self.main.release(key)

    async def park(self, key: SessionKey) -> None:
        """Parks the session at the main engine and removes it from the smaller one. There its slot might be needed by
        nobody for days, and its KV would count against what the tenant may keep."""
        try:
            await self.smaller.release(key)
        finally:
            await self.main.park(key)

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> KVExport | None:
        return await self.main.export_kv(key, ledger)

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        return await self.main.import_kv(key, chunks)

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast | None:
        engine, other = self._of(model)
        unseen = max(0, other.place(key).tokens - engine.place(key).tokens)
        return engine.forecast(key, share, new_tokens + unseen)

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        self._of(model)[0].expect(tenant, response_id)

    def _of(self, model: str) -> tuple[Engine, Engine]:
        """Returns the engine of the model `model` and the other one. For an unknown name the first is the main engine,
        which then refuses the request."""
        return (self.smaller, self.main) if model == self._info.smaller_model else (self.main, self.smaller)


class QuotaBrownoutEngine(BrownoutEngine):
    """A pair of engines that both bound each tenant's KV. Together they keep at most what one engine may keep."""

    @property
    def holdings(self) -> Holdings:
        return self._holdings

    async def start(self) -> None:
        await super().start()
        assert isinstance(self.main, HoldsKV) and isinstance(self.smaller, HoldsKV)
        self._holdings = CombinedHoldings(self.main.holdings, self.smaller.holdings)


class CombinedHoldings:
    """The KV of two engines as one `Holdings`. An engine that needs room for new KV evicts only its own."""

    def __init__(self, main: Holdings, smaller: Holdings) -> None:
        self._each = (main, smaller)
        self.ceiling: Callable[[TenantId], int | None] = lambda tenant: None
        main.ceiling = self._less(smaller)
        smaller.ceiling = self._less(main)

    def _less(self, other: Holdings) -> Callable[[TenantId], int | None]:
        def left(tenant: TenantId) -> int | None:
            ceiling = self.ceiling(tenant)
            return None if ceiling is None else max(0, ceiling - other.bytes_of(tenant))

        return left

    def bytes_of(self, tenant: TenantId) -> int:
        return sum(holdings.bytes_of(tenant) for holdings in self._each)


def make_brownout_engine(main: Engine, smaller: Callable[[EngineInfo], Engine]) -> BrownoutEngine:
    """Makes one engine of two, neither of which has started."""
    return (QuotaBrownoutEngine if isinstance(main, HoldsKV) else BrownoutEngine)(main, smaller)


async def _start_smaller(engine: Engine) -> None:
    """Starts the smaller engine; an error says that it was the smaller one that could not be started."""
    try:
        await engine.start()
    except (BadInput, Unavailable) as error:
        text = f"The model for brownout cannot be used. {error.public_message}"
        if isinstance(error, Unavailable):
            raise Unavailable(error.code, text) from error
        raise BadInput("bad_brownout_model", text, param="brownout_model") from error


def check_compatible(main: Engine, smaller: Engine) -> None:
    """Raises BadInput, naming both models and what to do, where a session's ledger would not suit both."""
    one, other = main.info, smaller.info
    if one.model_fingerprint == other.model_fingerprint:
        raise _refused(other, one, "is the same model. Name a smaller one, or none")
    if one.model == other.model:
        raise _refused(other, one, "has the same name, by which clients and bills distinguish models. Rename its file")
    if main.tokenizer.fingerprint != smaller.tokenizer.fingerprint:
        why = "has another tokenizer or chat template, so a conversation would be other tokens to it"
        raise _refused(other, one, f"{why}. Name a smaller model of the same family and version")
    if other.context_window < one.context_window:
        windows = f"takes {other.context_window} tokens of context and the model {one.context_window}"
        raise _refused(other, one, f"{windows}. Start with --context {other.context_window}, or name another")
    same_calls = (one.tool_format, one.call_format) == (other.tool_format, other.call_format)
    if not one.sampling <= other.sampling or not same_calls:
        raise _refused(other, one, "cannot do all that the model can. Name another")


def _refused(smaller: EngineInfo, main: EngineInfo, why: str) -> BadInput:
    text = f"The model for brownout {smaller.model!r} cannot stand beside {main.model!r}: it {why}."
    return BadInput("bad_brownout_model", text, param="brownout_model")
