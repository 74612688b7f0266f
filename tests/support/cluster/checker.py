"""Stands outside the product and looks at what became durable and what was shown.

I1: one replica per fence, and fences only grow. I2: whatever is shown stands in the journal at that moment.
I3: what was shown at (epoch, offset) never shows differently. I5: no command has two effects. `final` looks once more
at everything that was ever shown.
"""

from __future__ import annotations

from collections import Counter

from persistence.memory.database import MemoryDatabase
from sessions.model.events import ItemCreated, Record, ResponseCreated, ResponseEvent
from sessions.model.types import SessionKey
from tests.support.stores.tables import page_of


class Checker:
    def __init__(self, store: MemoryDatabase) -> None:
        self._store = store
        self._writers: dict[tuple[SessionKey, int], str] = {}
        self._fences: dict[SessionKey, int] = {}
        self._shown: dict[tuple[SessionKey, str, int], Record] = {}
        self.restored = False  # a backup was put back: what it did not have may have been shown

    def wrote(self, replica: str, call: str, key: SessionKey) -> None:
        """A replica's append or grant has just succeeded."""
        ((fence,),) = self._store.query("SELECT fence FROM heads WHERE tenant = ?1 AND session = ?2", *key)
        writer = self._writers.setdefault((key, fence), replica)
        assert writer == replica, f"{key}: {replica} wrote under the fence of {writer}"
        assert fence >= self._fences.get(key, 0), f"{key}: a fence went back"
        self._fences[key] = fence

    def shown(self, key: SessionKey, epoch: str, record: Record) -> None:
        """A reader was told of a record."""
        page = page_of(self._store, key, record.offset - 1, 1)
        assert page is not None and page.records, f"{key}: {record.offset} was shown before it was durable"
        durable = page.records[0]
        assert (durable.offset, durable.at, durable.event) == (record.offset, record.at, record.event)
        first = self._shown.setdefault((key, epoch, record.offset), record)
        assert first.event == record.event, f"{key}: {record.offset} was shown differently before"

    def final(self) -> None:
        keys = sorted({key for key, _, _ in self._shown} | set(self._fences))
        for key in keys:
            page = page_of(self._store, key)
            if page is not None:
                self._log(key, page.records)
        if not self.restored:
            for (key, _, offset), record in self._shown.items():
                page = page_of(self._store, key, offset - 1, 1)
                assert page is not None and page.records[0].event == record.event

    def _log(self, key: SessionKey, records: tuple[Record, ...]) -> None:
        assert [record.offset for record in records] == list(range(1, len(records) + 1)), f"{key}: a hole in the log"
        items = Counter(record.event.item.id for record in records if isinstance(record.event, ItemCreated))
        begun = Counter(record.event.response_id for record in records if isinstance(record.event, ResponseCreated))
        for counter in (items, begun):
            assert all(count == 1 for count in counter.values()), f"{key}: a command had two effects"
        numbers: dict[str, int] = {}
        for record in records:
            if isinstance(record.event, ResponseEvent):
                expected = numbers.get(record.event.response_id, 0)
                assert record.event.sequence_number == expected, f"{key}: a gap within {record.event.response_id}"
                numbers[record.event.response_id] = expected + 1
