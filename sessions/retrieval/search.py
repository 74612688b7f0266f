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
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
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


class PassageSearch:
    """Searches in the vector stores of a process."""

    def __init__(self, index: PassageIndex, embedder: Embedder, measures: Metrics) -> None:
        self.index = index
        self.embedder = embedder
        about = "How long stages of a search in vector stores took."
        self.stage_s: Histograms = measures.histograms("retrieval_stage_duration_seconds", about, STAGE_S, "stage")
        about = "Stages of searches that were left out, by which and why."
        self.num_skipped: Counter = measures.counter("retrieval_skipped", about, "stage", "why")

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
        return await _Search(self, query, only, ranker, deadlines or Deadlines()).outcome(stores, limit)


@dataclass(eq=False)
class _Search:
    """One search, with the time that it has left and the stages that it has left out."""

    services: PassageSearch
    query: str
    only: AttributeFilter | None
    ranker: Ranker
    deadlines: Deadlines
    tokens: int = 0
    skipped: dict[Stage, SkipReason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.until = self.clock() + self.deadlines.whole

    async def outcome(self, stores: Sequence[VectorStore], limit: int) -> SearchOutcome:
        models = {store.model: store for store in stores}
        embedded = await asyncio.gather(*map(self._embedded, models.values()))
        vectors = dict(zip(models, embedded, strict=True))
        searched = await asyncio.gather(*(self._in_store(store, vectors[store.model]) for store in stores))
        failures = [outcome for outcome in searched if isinstance(outcome, Unavailable)]
        if failures and len(failures) == len(stores):
            raise failures[0]
        passages = [passage for outcome in searched if not isinstance(outcome, Unavailable) for passage in outcome]
        passages.sort(key=lambda each: (-each.score, each.file, each.start))
        if self.ranker == "maxsim" and passages:
            passages = await self._ranked(stores[0], passages)
        return SearchOutcome(passages[:limit], self.tokens, self.skipped)

    async def _embedded(self, store: VectorStore) -> bytes | None:
        """Returns the query's vector by a store's model; None if the search goes on without it."""
        if self.ranker == "words":
            return None
        async with self._stage("embedding"):  # its model may refuse a query that is too long for it
            made = await self.services.embedder.embed(store.tenant, store.model, [self.query])
            self.tokens += made.tokens
            return made.vectors[0]
        return None

    async def _in_store(self, store: VectorStore, vector: bytes | None) -> list[Passage] | Unavailable:
        """Returns the passages of one store, or why it has not answered. With no time left nothing is asked of it."""
        index, begun_at = self.services.index, self.clock()
        by_meaning_alone = self.ranker == "none" and vector is not None

        async def by_meaning() -> list[tuple[int, float]]:
            return [] if vector is None else await index.nearest(store.tenant, store.id, vector, self.only, CANDIDATES)

        async def by_words() -> list[int]:
            if by_meaning_alone:
                return []
            return await index.matching(store.tenant, store.id, [self.query], self.only, CANDIDATES)

        try:
            index_s = self._seconds_for("index")
            if index_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(index_s):
                order, worded = await asyncio.gather(by_meaning(), by_words())
                if not by_meaning_alone:
                    near = [(1.0, [number for number, _ in order])] if vector is not None else []
                    order = fuse([*near, (1.0, worded)])
                scores = dict(order[:CANDIDATES])
                passages = await index.passages(store.tenant, store.id, list(scores))
        except TimeoutError:
            self._leave_out("vectors", "late")
            return SearchTooLate("vector_stores_unavailable", "The vector stores do not answer in time.")
        except Unavailable as error:
            self._leave_out("vectors", "failed")
            return error
        finally:
            self.services.stage_s.of("index").observe(self.clock() - begun_at)
        return [msgspec.structs.replace(each, score=scores[each.number]) for each in passages]

    async def _ranked(self, store: VectorStore, passages: list[Passage]) -> list[Passage]:
        best = passages[:RANKED]
        async with self._stage("ranking"):
            texts = [each.text for each in best]
            ranking = await self.services.embedder.rank(store.tenant, store.model, self.query, texts)
            self.tokens += ranking.tokens
            pairs = zip(best, ranking.scores, strict=True)
            scored = [msgspec.structs.replace(passage, score=score) for passage, score in pairs]
            return sorted(scored, key=lambda passage: -passage.score)
        return passages

    def _seconds_for(self, stage: Literal["embedding", "index", "ranking"]) -> float:
        """Returns how many seconds a stage that begins now may take."""
        stage_s: float = getattr(self.deadlines, stage)
        return max(min(stage_s, self.until - self.clock()), 0.0)

    @contextlib.asynccontextmanager
    async def _stage(self, stage: Literal["embedding", "ranking"]) -> AsyncIterator[None]:
        """Bounds and measures a stage of the search. If it is late or fails, what follows goes on without it."""
        begun_at = self.clock()
        try:
            async with asyncio.timeout(self._seconds_for(stage)):
                yield
        except TimeoutError:
            self._leave_out(stage, "late")
        except SessileError:
            self._leave_out(stage, "failed")
        finally:
            self.services.stage_s.of(stage).observe(self.clock() - begun_at)

    def _leave_out(self, stage: Stage, reason: SkipReason) -> None:
        self.skipped[stage] = reason
        self.services.num_skipped.add(stage, reason)
