"""Puts sentences into every place of a store where people and models write, and reads them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sessions.model.journal_types import Snapshot
from sessions.model.reviews import ReviewId
from sessions.model.types import ItemId
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW, a_command, a_log, delta, key, patch
from tests.support.stores.review_cases import a_case

PER_SESSION = 6
"""Sentences of one session: a title, metadata, an event, a snapshot, and both texts of a review case."""


async def plant(store: Store, texts: Sequence[str], *, first: int = 0) -> None:
    """Six sentences a session; `first` numbers the sessions of a later call."""
    for start in range(0, len(texts), PER_SESSION):
        title, about, said, folded, kept, note = texts[start : start + PER_SESSION]
        name = f"planted{first + start}"
        case = a_case(f"rev_{name}", key(name), item_id=ItemId("i"), kept=kept, note=note)
        await a_log(
            store.journal,
            name,
            0,
            records=(delta(1, said),),
            head=patch(title=title, metadata={"about": about}),
            snapshot=Snapshot(0, folded.encode()),
            commands=(a_command(1),),
            reviews=(case,),
        )


async def read_back(store: Store) -> set[str]:
    """Every sentence that can be read."""
    found: set[str] = set()
    for head in await store.journal.list_heads(ACME, user=None, limit=10_000, after=None):
        loaded = await store.journal.load(head.key, now_ms=NOW)
        case = await store.reviews.find(ReviewId(f"rev_{head.key.session}"))
        assert loaded is not None and loaded.snapshot is not None and case is not None and len(loaded.commands) == 1
        about: Any = loaded.head.metadata["about"]
        event: Any = msgspec.to_builtins(loaded.records[0].event)
        found |= {str(loaded.head.title), about, event["delta"], loaded.snapshot.body.decode(), case.kept, case.note}
    return found
