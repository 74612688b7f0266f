"""Joins the pages of a log that is longer than one read."""

from __future__ import annotations

from sessions.model.errors import Internal
from sessions.model.events import Record
from sessions.model.journal_types import Head
from sessions.ports import Journal


async def read_rest(journal: Journal, head: Head, after: int, page_rows: int, page_bytes: int) -> list[Record]:
    """The records behind `after` up to this head's top: what stands up to there stays, so later reads may fetch it.
    Raises Internal where they end before."""
    records: list[Record] = []
    while after + len(records) < head.top:
        page = await journal.read(head.key, after=after + len(records), limit=page_rows, bytes_max=page_bytes)
        if page is None or not page.records:
            raise Internal("journal_hole", "The stored log of this session ends before its head.")
        records += page.records[: head.top - after - len(records)]
    return records
