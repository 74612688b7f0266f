"""Searches for one prompt: in the stores that its principal may search, within deadlines and a budget of characters.

The tool `file_search` uses it, and `knowledge`: what a session or a turn names, and what is searched with a message's
words before its answer begins. The result names late and failed stages, and stores that are gone, with the reason; the
answer then lacks that part and nothing else. The tenant is part of each query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec.structs import replace

from sessions.model.errors import NotFound, SessileError, Unavailable
from sessions.model.types import Principal, SearchScope, TenantId
from sessions.retrieval.filters import parse_filter
from sessions.retrieval.search import Deadlines, PassageSearch, SearchTooLate, SkipReason, Stage
from sessions.retrieval.vector_stores import (
    DocumentId,
    Passage,
    PassageIndex,
    StoreId,
    VectorStore,
    may_search_store,
    may_see_store,
    store_not_found,
)

RESULTS_MAX: Final = 20
RESULTS: Final = 5
CHARACTERS_MAX: Final = 12_000  # of all passages of one search: its budget in the prompt
DEADLINES: Final = Deadlines(embedding=0.15, index=0.1, whole=0.25)
UNAVAILABLE: Final = "vector_stores_unavailable"
_AT_ONCE: Final = 1_000  # documents of one query


class Retrieved(NamedTuple):
    """The passages that a search found, the best first, and why parts of it were left out. `error` is the code of the
    error because of which there are none."""

    passages: Sequence[Passage] = ()
    reasons: Mapping[Stage, SkipReason] = MappingProxyType({})
    error: str = ""


StoreChoice = tuple[Sequence[VectorStore], bool]
"""The stores to search, and whether some that were named are missing."""


class ScopedSearch:
    """Searches the stores of one scope at a time. `check` and `find` are for what a client names itself."""

    def __init__(self, index: PassageIndex, search: PassageSearch, deadlines: Deadlines = DEADLINES) -> None:
        self._index = index
        self._search = search
        self._deadlines = deadlines

    async def check(self, principal: Principal, scope: SearchScope) -> None:
        """Raises NotFound for a store of a scope that the principal does not see, or that searches for its user could
        not use. While the index does not answer nothing is checked."""
        try:
            async with asyncio.timeout(self._deadlines.whole):
                await self._named(principal, scope)
        except (TimeoutError, Unavailable):
            return

    async def find(
        self, principal: Principal, scope: SearchScope, query: str, *, named: bool, characters_max: int
    ) -> Retrieved:
        """Searches a scope for a principal. If they have named it with this turn, raises NotFound as `check` does;
        otherwise stores that they may not search count as missing."""

        async def choose() -> StoreChoice:
            if named:
                return await self._named(principal, scope), False
            stores = await self.in_scope(principal.tenant, principal.user, scope)
            return stores, len(stores) < len(set(scope.vector_store_ids))

        limit = min(scope.results_max or RESULTS, RESULTS_MAX)
        return await self.search(choose, query, scope, limit=limit, characters_max=characters_max)

    async def search(
        self,
        choose: Callable[[], Awaitable[StoreChoice]],
        query: str,
        scope: SearchScope | None,
        *,
        limit: int,
        characters_max: int = CHARACTERS_MAX,
    ) -> Retrieved:
        """Searches the stores that `choose` returns for passages that the scope admits. Raises nothing but the NotFound
        of `choose`."""
        clock = asyncio.get_running_loop().time
        begun_at = clock()
        try:
            async with asyncio.timeout(self._deadlines.index):
                stores, is_missing = await choose()
            only = None if scope is None or scope.filters is None else parse_filter(scope.filters)
            left = replace(self._deadlines, whole=self._deadlines.whole - (clock() - begun_at))
            outcome = await self._search.search(stores, query, only=only, limit=limit, deadlines=left)
        except (TimeoutError, SearchTooLate):
            return Retrieved((), {"vectors": "late"}, UNAVAILABLE)
        except NotFound:
            raise
        except SessileError as error:
            return Retrieved((), {"vectors": "failed"}, error.code)
        reasons: dict[Stage, SkipReason] = {"vectors": "missing"} if is_missing else {}
        reasons |= outcome.reasons
        good = [passage for passage in outcome.passages if scope is None or passage.score >= scope.score_min]
        return Retrieved(within(good, characters_max), reasons)

    async def in_scope(self, tenant: TenantId, user: str | None, scope: SearchScope) -> list[VectorStore]:
        """Returns the stores of a scope that turns of the user may search."""
        stores = await self._index.stores_of_ids(tenant, [StoreId(name) for name in scope.vector_store_ids])
        return [store for store in stores if may_search_store(tenant, user, store)]

    async def deleted(self, tenant: TenantId, documents: Collection[str]) -> list[str]:
        """Returns those of the documents that are in no store of the tenant any more; none while the index does not
        answer."""
        ids, present = [DocumentId(name) for name in documents], set[str]()
        try:
            async with asyncio.timeout(self._deadlines.index):
                for begin in range(0, len(ids), _AT_ONCE):
                    present |= await self._index.present(tenant, ids[begin : begin + _AT_ONCE])
        except (TimeoutError, SessileError):
            return []
        return [name for name in documents if name not in present]

    async def _named(self, principal: Principal, scope: SearchScope) -> list[VectorStore]:
        stores = await self.in_scope(principal.tenant, principal.user, scope)
        visible = {store.id for store in stores if may_see_store(principal, store)}
        for name in scope.vector_store_ids:
            if name not in visible:
                raise store_not_found(name)
        return stores


def within(passages: Sequence[Passage], characters: int) -> list[Passage]:
    """Returns as many passages, from the first (the best) on, as fit into `characters`."""
    kept: list[Passage] = []
    for passage in passages:
        characters -= len(passage.text)
        if characters < 0:
            break
        kept.append(passage)
    return kept
