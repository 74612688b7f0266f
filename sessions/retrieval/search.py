"""Searches vector stores: by meaning and by words at the same time, fused by rank, and re-ranked if that is requested.

Each stage has a deadline, and so may have the search as a whole; the stores are searched at the same time. Where the
embedding of a store's model fails the store is searched by words alone; a store that fails or is late is left out. The
answer names the stages that were left out (`skipped`) and why; if no store answers there is no answer (`Unavailable`).
All stores must be of one tenant; the caller chooses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

import msgspec

from sessions.metrics import Counter, Histograms, Metrics
from sessions.model.errors import SessileError, Unavailable
from sessions.retrieval.embedding import Embedder
from sessions.retrieval.filters import AttributeFilter
from sessions.retrieval.ranking import fuse
from sessions.retrieval.vector_stores import Passage, PassageIndex, VectorStore

Ranker = Literal["auto", "none", "words", "maxsim"]
Stage = Literal["embedding", "vectors", "words", "ranking"]
SkipReason = Literal["late", "failed", "missing"]

CANDIDATES: Final = 50  # of each list
RANKED: Final = 20  # passages that are re-ranked, at most
STAGE_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Deadlines(msgspec.Struct, frozen=True):
    """The longest time for each stage of a search (`index`: for each store), and for all together, in seconds."""

    embedding: float = 5.0
    index: float = 5.0
    ranking: float = 10.0
    whole: float = math.inf


class SearchOutcome(NamedTuple):
    """The result of a search: the passages, the best first; how many tokens were embedded; and why each stage that
    was skipped was."""

    passages: list[Passage]
    tokens: int = 0
    reasons: Mapping[Stage, SkipReason] = MappingProxyType({})


class SearchTooLate(Unavailable):
    """No store has answered within the deadlines."""


class _Remaining:
    """The time that a running search has left for its stages."""

    def __init__(self, deadlines: Deadlines, clock: Callable[[], float]) -> None:
        self._deadlines = deadlines
        self._clock = clock
        self._until = clock() + deadlines.whole

    def seconds_for(self, stage: Literal["embedding", "index", "ranking"]) -> float:
        """Returns how many seconds a stage that begins now may take."""
        stage_s: float = getattr(self._deadlines, stage)
        return max(min(stage_s, self._until - self._clock()), 0.0)


class PassageSearch:
    def __init__(self, index: PassageIndex, embedder: Embedder, measures: Metrics) -> None:
        self._index = index
        self._embedder = embedder
        about = "How long stages of a search in vector stores took."
        self._stage_s: Histograms = measures.histograms("retrieval_stage_duration_seconds", about, STAGE_S, "stage")
        about = "Stages of searches that were left out, by which and why."
        self._skipped: Counter = measures.counter("retrieval_skipped", about, "stage", "why")

    async def search(
        self,
        stores: Sequence[VectorStore],
        query: str,
        *,
        only: AttributeFilter | None = None,
        limit: int = 10,
        ranker: Ranker = "auto",
        deadlines: Deadlines | None = None,
    ) -> SearchOutcome:
        """Searches the stores; returns the best `limit` passages. Raises Unavailable if none of the stores answers:
        SearchTooLate if they are late."""
        limits = _Remaining(deadlines or Deadlines(), asyncio.get_running_loop().time)
        skipped = dict[Stage, SkipReason]()
        models = {store.model: store for store in stores}
        embedded = await asyncio.gather(
            *(self._embedded(store, query, ranker, limits, skipped) for store in models.values())
        )
        vectors = dict(zip(models, (vector for vector, _ in embedded), strict=True))
        tokens = sum(used for _, used in embedded)
        searched = await asyncio.gather(
            *(self._in_store(store, query, vectors[store.model], only, ranker, limits, skipped) for store in stores)
        )
        failures = [outcome for outcome in searched if isinstance(outcome, Unavailable)]
        if failures and len(failures) == len(stores):
            raise failures[0]
        passages = [passage for outcome in searched if not isinstance(outcome, Unavailable) for passage in outcome]
        passages.sort(key=lambda each: (-each.score, each.file, each.start))
        if ranker == "maxsim" and passages:
            passages, used = await self._ranked(stores[0], query, passages, limits, skipped)
            tokens += used
        return SearchOutcome(passages[:limit], tokens, skipped)

    async def _embedded(
        self, store: VectorStore, query: str, ranker: Ranker, limits: _Remaining, skipped: dict[Stage, SkipReason]
    ) -> tuple[bytes | None, int]:
        if ranker == "words":
            return None, 0
        async with self._stage("embedding", limits, skipped):  # its model may refuse a query that is too long for it
            made = await self._embedder.embed(store.tenant, store.model, [query])
            return made.vectors[0], made.tokens
        return None, 0

    async def _in_store(
        self,
        store: VectorStore,
        query: str,
        vector: bytes | None,
        only: AttributeFilter | None,
        ranker: Ranker,
        limits: _Remaining,
        skipped: dict[Stage, SkipReason],
    ) -> list[Passage] | Unavailable:
        """Returns the passages of one store, or why it has not answered. With no time left nothing is asked of it."""
        index, clock = self._index, asyncio.get_running_loop().time
        begun_at = clock()

        async def by_meaning() -> list[tuple[int, float]]:
            return [] if vector is None else await index.nearest(store.tenant, store.id, vector, only, CANDIDATES)

        async def by_words() -> list[int]:
            if ranker == "none" and vector is not None:
                return []
            return await index.matching(store.tenant, store.id, [query], only, CANDIDATES)

        try:
            index_s = limits.seconds_for("index")
            if index_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(index_s):
                near, worded = await asyncio.gather(by_meaning(), by_words())
                if ranker == "none" and vector is not None:
                    order = near
                else:
                    lists = [(1.0, [number for number, _ in near])] if vector is not None else []
                    order = fuse([*lists, (1.0, worded)])
                scores = dict(order[:CANDIDATES])
                passages = await index.passages(store.tenant, store.id, list(scores))
        except TimeoutError:
            self._leave_out("vectors", "late", skipped)
            return SearchTooLate("vector_stores_unavailable", "The vector stores do not answer in time.")
        except Unavailable as error:
            self._leave_out("vectors", "failed", skipped)
            return error
        finally:
            self._stage_s.of("index").observe(clock() - begun_at)
        return [msgspec.structs.replace(each, score=scores[each.number]) for each in passages]

    async def _ranked(
        self,
        store: VectorStore,
        query: str,
        passages: list[Passage],
        limits: _Remaining,
        skipped: dict[Stage, SkipReason],
    ) -> tuple[list[Passage], int]:
        best = passages[:RANKED]
        async with self._stage("ranking", limits, skipped):
            texts = [each.text for each in best]
            ranking = await self._embedder.rank(store.tenant, store.model, query, texts)
            pairs = zip(best, ranking.scores, strict=True)
            scored = [msgspec.structs.replace(passage, score=score) for passage, score in pairs]
            return sorted(scored, key=lambda passage: -passage.score), ranking.tokens
        return passages, 0

    @contextlib.asynccontextmanager
    async def _stage(
        self, stage: Literal["embedding", "ranking"], limits: _Remaining, skipped: dict[Stage, SkipReason]
    ) -> AsyncIterator[None]:
        """Bounds and measures a stage of a search. If it is late or fails, what follows goes on without it."""
        clock = asyncio.get_running_loop().time
        begun_at = clock()
        try:
            async with asyncio.timeout(limits.seconds_for(stage)):
                yield
        except TimeoutError:
            self._leave_out(stage, "late", skipped)
        except SessileError:
            self._leave_out(stage, "failed", skipped)
        finally:
            self._stage_s.of(stage).observe(clock() - begun_at)

    def _leave_out(self, stage: Stage, reason: SkipReason, skipped: dict[Stage, SkipReason]) -> None:
        skipped[stage] = reason
        self._skipped.add(stage, reason)
