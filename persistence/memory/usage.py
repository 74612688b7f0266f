"""Usage rows in memory. The port is `sessions.billing.metering.UsageStore`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from persistence.memory.database import MemoryDatabase
from sessions.billing.metering import DAY_MS, UsageEntry, UsageGroup, UsageQuery, UsageTotal
from sessions.model.journal_types import UsageRow
from sessions.model.types import SessionKey, UnixMs


class MemoryUsage:
    """Usage rows in a list. A row's sequence number is its position in the order of arrival."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def record(self, key: SessionKey, row: UsageRow) -> None:
        self._database.usage_rows.setdefault((key, row.response_id), row)

    def _all(self) -> list[UsageEntry]:
        return [
            UsageEntry(seq, key, row) for seq, ((key, _), row) in enumerate(self._database.usage_rows.items(), start=1)
        ]

    def _matching(self, query: UsageQuery) -> list[UsageEntry]:
        return [
            entry
            for entry in self._all()
            if entry.key.tenant == query.tenant
            and query.since <= entry.row.at < query.until
            and (query.user is None or entry.row.principal.user == query.user)
            and (query.model is None or entry.row.model == query.model)
        ]

    async def totals(self, query: UsageQuery, *, after: UsageGroup | None, limit: int) -> list[UsageTotal]:
        groups: defaultdict[UsageGroup, list[UsageRow]] = defaultdict(list)
        for entry in self._matching(query):
            row = entry.row
            group = UsageGroup(
                row.at // DAY_MS if "day" in query.by else -1,
                (row.principal.user or "") if "user" in query.by else "",
                row.model if "model" in query.by else "",
                row.currency,
            )
            groups[group].append(row)
        return [
            UsageTotal(
                group=group,
                responses=len(groups[group]),
                input_tokens=sum(row.usage.input_tokens for row in groups[group]),
                cached_tokens=sum(row.usage.cached_tokens for row in groups[group]),
                output_tokens=sum(row.usage.output_tokens for row in groups[group]),
                reasoning_tokens=sum(row.usage.reasoning_tokens for row in groups[group]),
                cached_output_tokens=sum(row.usage.cached_output_tokens for row in groups[group]),
                recomputed_tokens=sum(row.recomputed_tokens for row in groups[group]),
                withheld_tokens=sum(row.withheld_tokens for row in groups[group]),
                cost=sum(row.cost for row in groups[group]),
            )
            for group in sorted(groups)
            if after is None or group > after
        ][:limit]

    async def entries(self, query: UsageQuery, *, after: int, limit: int) -> list[UsageEntry]:
        return [entry for entry in self._matching(query) if entry.seq > after][:limit]

    async def of_session(self, key: SessionKey) -> list[UsageEntry]:
        return [entry for entry in self._all() if entry.key == key]

    async def session_keys(self, *, after: SessionKey | None, limit: int) -> list[SessionKey]:
        return [key for key in sorted(self._database.keys()) if after is None or key > after][:limit]

    async def without_log(self) -> int:
        there = set(self._database.keys())
        return sum(entry.key not in there for entry in self._all())

    async def unrelayed(self, *, limit: int) -> list[UsageEntry]:
        return [entry for entry in self._all() if entry.seq not in self._database.relayed][:limit]

    async def mark_relayed(self, seqs: Sequence[int], *, at: UnixMs) -> None:
        for seq in seqs:
            self._database.relayed.setdefault(seq, at)
