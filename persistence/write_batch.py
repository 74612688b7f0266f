"""The writes of a group commit: appends with their bodies already encoded, grants, and other jobs.

The caller encodes a write when it makes it: what cannot be stored fails there, alone, and never inside a batch of
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from persistence.codec import (
    HEAD_ROW,
    Codec,
    HeadBody,
    command_row,
    encode_command,
    encode_head_body,
    encode_ok,
    encode_record,
    review_row,
    seal_text,
    snapshot_row,
)
from persistence.group_commit import Write
from persistence.validation import check_append, check_key, check_text
from sessions.model.audit import AuditEntry, Sealer
from sessions.model.errors import TooLarge
from sessions.model.events import ResponseCreated, ResponseQueued
from sessions.model.journal_types import Append, UsageRow
from sessions.model.push import GRACE_MS
from sessions.model.reviews import Case
from sessions.model.types import Epoch, SessionKey, UnixMs

ROW_OVERHEAD_BYTES: Final = 96
_BEGINNINGS: Final = (ResponseQueued, ResponseCreated)
REVIEW_COLUMNS: Final = (
    "tenant, id, session, cause, direction, action, category, score, model, policy, end_user, response, item,"
    " log_offset, span_start, span_end, kept, note, opened_at, appealed_at"
)
USAGE_COLUMNS: Final = (
    "tenant, session, response, principal_key, principal_user, principal_role, model, status, input_tokens,"
    " output_tokens, cached_tokens, reasoning_tokens, cached_output_tokens, recomputed_tokens, withheld_tokens, at,"
    " price_version, currency, cost"
)
PUSH_COLUMNS: Final = "tenant, session, subscription, end_user, cause, response, log_offset, at, due_at, attempts"
PUSH_AGAIN: Final = (
    "ON CONFLICT (tenant, session, subscription) DO UPDATE SET end_user = excluded.end_user, cause = excluded.cause,"
    " response = excluded.response, log_offset = excluded.log_offset, at = excluded.at, due_at = excluded.due_at,"
    " attempts = 0"
)
"""A later push notice for the same session and device replaces one that is not sent yet."""
_CASE_ATTRIBUTES: Final = {
    "tenant": "key.tenant",
    "session": "key.session",
    "end_user": "user",
    "response": "response_id",
    "item": "item_id",
    "log_offset": "offset",
    "span_start": "start",
    "span_end": "end",
}


def case_attributes(columns: str) -> list[str]:
    """Returns the attribute of `Case` (a dotted path) behind each of these comma-separated columns of `reviews`."""
    return [_CASE_ATTRIBUTES.get(name, name) for name in columns.split(", ")]


_REVIEW_ATTRIBUTES: Final = case_attributes(REVIEW_COLUMNS)
_KEPT, _NOTE = _REVIEW_ATTRIBUTES.index("kept"), _REVIEW_ATTRIBUTES.index("note")
_review_values = attrgetter(*_REVIEW_ATTRIBUTES)
_usage_values = attrgetter(
    *("response_id", "principal.key_id", "principal.user", "principal.role", "model", "status"),
    *("usage.input_tokens", "usage.output_tokens", "usage.cached_tokens", "usage.reasoning_tokens"),
    "usage.cached_output_tokens",
    *("recomputed_tokens", "withheld_tokens", "at", "price_version", "currency", "cost"),
)
REVIEW_AGAIN: Final = (
    "ON CONFLICT (tenant, id) DO UPDATE SET appealed_at = excluded.appealed_at, note = excluded.note,"
    " state = CASE WHEN reviews.state = 'decided' THEN 'open' ELSE reviews.state END"
    " WHERE (excluded.appealed_at IS NOT NULL AND reviews.appealed_at IS NULL)"
    " OR (excluded.cause = 'feedback' AND reviews.cause = 'feedback' AND reviews.state <> 'decided')"
)
"""How an append updates a review case that exists already: a first appeal opens a decided case again; a rating replaces
the reason of one that is not decided."""


class AppendWrite(Write):
    """An append and its rows. Each row is a tuple in the order of its statement's columns."""

    __slots__ = (
        "append",
        "audit",
        "bare",
        "commands",
        "events",
        "patch",
        "push",
        "responses",
        "reviews",
        "snapshot",
        "usage",
    )

    def __init__(self, codec: Codec, append: Append, *, sealer: Sealer, bytes_max: int) -> None:
        """Encodes the append's rows. Raises TooLarge if they have more than `bytes_max` bytes, and BadInput. Thousands
        of deltas come every second, so kinds of rows that an append does not have cost nothing."""
        check_append(append)
        key = append.key
        tenant, session = key
        encode = codec.encode
        size = ROW_OVERHEAD_BYTES
        events: list[tuple[Any, ...]] = []
        responses: Sequence[tuple[Any, ...]] = ()
        for record in append.records:
            offset = record.offset
            key_id, body = encode(key, offset, encode_record(record))
            events.append((tenant, session, offset, key_id, body))
            size += ROW_OVERHEAD_BYTES + len(body)
            event = record.event
            if type(event) in _BEGINNINGS:
                responses = (*responses, (tenant, event.response_id, session, offset))  # type: ignore[union-attr]
                size += ROW_OVERHEAD_BYTES
        self.append = append
        self.events = events
        self.responses = responses
        self.patch: tuple[Any, ...] | None = None
        self.commands: Sequence[tuple[Any, ...]] = ()
        self.usage: Sequence[tuple[Any, ...]] = ()
        self.reviews: Sequence[tuple[Any, ...]] = ()
        self.push: tuple[Any, ...] | None = None
        self.snapshot: tuple[Any, ...] | None = None
        self.audit: Sequence[AuditEntry] = ()
        self.bare = not (
            responses
            or append.head is not None
            or append.commands
            or append.usage
            or append.reviews
            or append.snapshot is not None
            or append.audit
            or append.push is not None
        )
        if not self.bare:
            size += self._beside(codec, sealer)
        if size > bytes_max:
            raise TooLarge("append_too_large", f"One change of a session is limited to {bytes_max} bytes.")
        super().__init__(key, rows=len(events), size=size)

    def _beside(self, codec: Codec, sealer: Sealer) -> int:
        """Encodes everything of the append except its records into rows; returns their size in bytes."""
        append, key, encode = self.append, self.append.key, codec.encode
        size = 0
        if append.reviews:
            self.reviews = review_rows(codec, append.reviews)
            size += sum(ROW_OVERHEAD_BYTES * 4 + len(row[_KEPT]) + len(row[_NOTE]) for row in self.reviews)
        if append.audit:
            self.audit = [sealer.entry(key.tenant, row) for row in append.audit]
            size += sum(2 * ROW_OVERHEAD_BYTES + len(entry.body) for entry in self.audit)
        if append.head is not None:
            head = append.head
            key_id, about = encode(key, HEAD_ROW, encode_head_body(HeadBody(head.title, head.metadata)))
            state = (head.open, head.user, head.model, key_id, about, head.listed, head.deleted_at, append.at)
            self.patch = (*key, *state)
            size += ROW_OVERHEAD_BYTES + len(about)
        for command in append.commands:
            whose = (command.principal_id, command.command_id)
            ok = encode_ok(command.answer)
            digest, answer = encode_command(codec, key, command_row(*whose), command.digest, ok)
            self.commands = (*self.commands, (*key, *whose, command.at, digest, answer))
            size += ROW_OVERHEAD_BYTES + len(answer)
        if (push := append.push) is not None:
            said = (push.user, push.cause, push.response_id, push.offset)
            self.push = (*key, *said, append.at, append.at + GRACE_MS)
            size += 2 * ROW_OVERHEAD_BYTES
        self.usage = [usage_row(key, row) for row in append.usage]
        size += 2 * ROW_OVERHEAD_BYTES * len(self.usage)
        if append.snapshot is not None:
            key_id, body = encode(key, snapshot_row(append.snapshot.offset), append.snapshot.body)
            self.snapshot = (*key, append.snapshot.offset, key_id, body)
            size += ROW_OVERHEAD_BYTES + len(body)
        return size


def review_rows(codec: Codec, cases: Sequence[Case]) -> list[tuple[Any, ...]]:
    """Returns one row for each case id, made from the last case with that id, in the order of `REVIEW_COLUMNS`."""
    rows = []
    for case in {case.id: case for case in cases}.values():
        row = list(_review_values(case))
        row[_KEPT] = seal_text(codec, case.key, review_row(case.id, "kept"), case.kept)
        row[_NOTE] = seal_text(codec, case.key, review_row(case.id, "note"), case.note)
        rows.append(tuple(row))
    return rows


class GrantWrite(Write):
    __slots__ = ("about", "expected_fence", "key_id", "new_epoch", "now_ms", "owner")

    def __init__(
        self, codec: Codec, key: SessionKey, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> None:
        check_key(key)
        check_text(owner, new_epoch)
        super().__init__(key, rows=1, size=4 * ROW_OVERHEAD_BYTES)
        self.expected_fence = expected_fence
        self.owner = owner
        self.new_epoch = new_epoch
        self.now_ms = now_ms
        self.key_id, self.about = codec.encode(key, HEAD_ROW, encode_head_body(HeadBody()))


class JobWrite(Write):
    """Another job that needs the writer's transaction. `run` gets the store's connection; what it returns is the
    write's result."""

    __slots__ = ("run",)

    def __init__(self, key: SessionKey, run: Callable[[Any], Any]) -> None:
        super().__init__(key, rows=1, size=ROW_OVERHEAD_BYTES)
        self.run = run


def usage_row(key: SessionKey, row: UsageRow) -> tuple[Any, ...]:
    """Returns the values of the `usage` table's columns that are known when a response ends."""
    return (*key, *_usage_values(row))
