"""Searches the conversations of a principal: titles, and the texts of their present branches.

Nothing is indexed, for an index of encrypted bodies would be a copy of them in the clear. A search reads: it goes
through the sessions that a list shows, newest first, loads each as a reader would, and looks at its texts in a thread.

Limits: one request looks at `SESSIONS_MAX` sessions, `TEXT_MAX` code points and for `SEARCH_S`, whichever ends first,
and returns where the next one goes on. `SEARCHES_MAX` run at once in a process, of one key (with all users that it
speaks for) only one; of a principal `WAITING_MAX` wait, of a key `WAITING_PER_KEY`.
Who sees what is the list's rule: the sessions of the principal's tenant, an end user's own alone, deleted ones never.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from sessions.machine.item_tree import ancestors
from sessions.machine.state import State
from sessions.model.authorization import may_see
from sessions.model.errors import BadInput, Internal, Limited, NotFound
from sessions.model.journal_types import Head
from sessions.model.types import Message, Principal, SessionId, SessionKey
from sessions.ports import Journal
from transport.auth.connection_shares import key_of
from transport.reading.log_reader import LogReader

QUERY_MAX: Final = 256  # code points
WORDS_MAX: Final = 16
MATCHES_MAX: Final = 3  # of one session
SESSIONS_MAX: Final = 64
TEXT_MAX: Final = 4_000_000
SEARCH_S: Final = 1.0
SEARCHES_MAX: Final = 2
WAITING_MAX: Final = 4
WAITING_PER_KEY: Final = 16
HEADS_AT_ONCE: Final = 16
CLUSTER_MAX: Final = 32  # code points composed at once: Unicode sorts marks in the time of their number squared
BEFORE: Final = 60  # code points of a snippet before the match
AFTER: Final = 120  # and after the match's beginning

_SPACE: Final = re.compile(r"\s")

log = structlog.get_logger(__name__)


class Match(NamedTuple):
    """A text with all words of a query. `item_id` is None for the title. `start` and `end` bound the first word in
    `snippet`, in code points."""

    item_id: str | None
    role: str | None
    snippet: str
    start: int
    end: int


class SearchHit(NamedTuple):
    head: Head
    matches: tuple[Match, ...]


class SearchPage(NamedTuple):
    """One page of a search. `last_id` is the last session that was examined, behind which the next page begins.
    `has_more` may be true although this page is empty."""

    hits: tuple[SearchHit, ...]
    has_more: bool
    last_id: SessionId | None


class Words(NamedTuple):
    """A query's words, folded in case, width and composition; a text matches if it has all of them. Uses `str.find`,
    whose time is linear: a regular expression could take query times text, and would hold up every other thread."""

    folded: tuple[str, ...]

    def snippet(self, text: str) -> tuple[str, int, int] | None:
        """Returns (snippet, start, end) around the first word; None if a word is missing from the text."""
        folded, places = _fold(text)
        match_at = folded.find(self.folded[0])
        if match_at < 0 or not all(word in folded for word in self.folded[1:]):
            return None
        behind = match_at + len(self.folded[0])
        start, end = (match_at, behind) if places is None else (places[match_at], places[behind])
        first, last = max(0, start - BEFORE), min(len(text), max(end, start + AFTER))
        shown = _SPACE.sub(" ", text[first:last])
        dots = "…" if first else ""
        moved = len(dots) - first
        return f"{dots}{shown}{'…' if last < len(text) else ''}", start + moved, end + moved


def words_of(query: str) -> Words:
    """Returns a query's folded words. Raises BadInput for a query without words, or too long a one."""
    words = list(dict.fromkeys(query.split()))
    if not words or len(query) > QUERY_MAX or len(words) > WORDS_MAX:
        raise BadInput(
            "invalid_request", f"`q` is 1 to {WORDS_MAX} words, of {QUERY_MAX} characters at most.", param="q"
        )
    return Words(tuple(_fold(word)[0] for word in words))


def _fold(text: str) -> tuple[str, list[int] | None]:
    """Returns a text in one case and width and composed (NFKC), and each folded character's place in the original,
    with the end's; None instead if all characters stay in place."""
    if unicodedata.is_normalized("NFKC", text):
        return _in_one_case(text), None
    parts: list[str] = []
    places: list[int] = []
    begin = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or not _extends(text[end]) or end - begin == CLUSTER_MAX:
            part = _in_one_case(unicodedata.normalize("NFKC", text[begin:end]))
            parts.append(part)
            places += [begin] * len(part)
            begin = end
    return "".join(parts), [*places, len(text)]


def _extends(char: str) -> bool:
    """Returns whether NFKC may compose a character with the one before it: a mark, a later letter of a Hangul syllable,
    or a voicing mark of halfwidth Katakana."""
    return bool(unicodedata.combining(char)) or "\u1160" <= char <= "\u11ff" or char in "\uff9e\uff9f"


def _in_one_case(text: str) -> str:
    """Returns a text in one case, with as many characters as before."""
    lower = text.replace("\u0130", "i").lower()
    return lower.replace("ς", "σ").replace("ſ", "s").replace("\u00b5", "\u03bc")


def matches_of(state: State, words: Words) -> tuple[tuple[Match, ...], int]:
    """Returns the first matches in a session, and how many code points were examined. Pure; for a thread."""
    matches: list[Match] = []
    looked_at = 0
    for item_id, role, text in _texts(state):
        looked_at += len(text)
        snippet = words.snippet(text)
        if snippet is not None:
            matches.append(Match(item_id, role, *snippet))
            if len(matches) == MATCHES_MAX:
                break
    return tuple(matches), looked_at


def _texts(state: State) -> Iterator[tuple[str | None, str | None, str]]:
    """Yields (item id, role, text): the title first, then the messages, newest first."""
    if state.info is not None and state.info.title:
        yield None, None, state.info.title
    for item in ancestors(state, state.newest):
        if isinstance(item, Message) and item.role in ("user", "assistant"):
            yield item.id, item.role, item.sent_text


@dataclass(slots=True)
class _KeySearches:
    """The searches of one key that run or wait, one after the other, so that others wait for at most one of them."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    under_way: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class ConversationSearch:
    """Runs the searches of one process, a bounded number at once. `clock` is monotonic, in seconds."""

    journal: Journal
    logs: LogReader
    clock: Callable[[], float]
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SEARCHES_MAX))
    _waiting: Counter[tuple[str, str]] = field(default_factory=Counter)
    _keys: dict[tuple[str, str], _KeySearches] = field(default_factory=dict)

    async def search(self, principal: Principal, query: str, *, limit: int, after: SessionId | None) -> SearchPage:
        """Returns the sessions that have every word of a query, newest first. The caller has demanded `read`. Raises
        BadInput, Limited, Unavailable, NotFound for an unknown `after`."""
        words = words_of(query)
        who, name = (principal.tenant, principal.id), key_of(principal)
        key = self._keys.setdefault(name, _KeySearches())
        if self._waiting[who] >= WAITING_MAX or key.under_way >= WAITING_PER_KEY:
            raise Limited(
                "rate_limited",
                "Too many searches of this key are under way: wait for one to end.",
                retry_after_ms=1_000,
            )
        self._waiting[who] += 1
        key.under_way += 1
        try:
            async with key.turn, self._places:
                return await self._search(principal, words, limit, after)
        finally:
            self._waiting[who] -= 1
            if not self._waiting[who]:
                del self._waiting[who]
            key.under_way -= 1
            if not key.under_way:
                del self._keys[name]

    async def _search(self, principal: Principal, words: Words, limit: int, after: SessionId | None) -> SearchPage:
        until, looked_at, num_sessions = self.clock() + SEARCH_S, 0, 0
        hits: list[SearchHit] = []
        last = after
        while True:
            heads = await self._heads(principal, last)
            for head in heads[:HEADS_AT_ONCE]:
                last, num_sessions = head.key.session, num_sessions + 1
                hit, looked = await self._look(principal, head.key, words)
                looked_at += looked
                if hit is not None:
                    hits.append(hit)
                full = len(hits) >= limit or num_sessions >= SESSIONS_MAX or looked_at >= TEXT_MAX
                if full or self.clock() >= until:
                    return SearchPage(tuple(hits), has_more=head is not heads[-1], last_id=last)
            if len(heads) <= HEADS_AT_ONCE:
                return SearchPage(tuple(hits), has_more=False, last_id=last)

    async def _heads(self, principal: Principal, after: SessionId | None) -> Sequence[Head]:
        """Returns the next heads of the list, with one more if others follow."""
        user = principal.user if principal.role == "user" else None
        key = None if after is None else SessionKey(principal.tenant, after)
        return await self.journal.list_heads(principal.tenant, user=user, limit=HEADS_AT_ONCE + 1, after=key)

    async def _look(self, principal: Principal, key: SessionKey, words: Words) -> tuple[SearchHit | None, int]:
        try:
            head, state = await self.logs.fold(key, in_thread=True)
        except NotFound:  # purged since it was listed
            return None, 0
        except Internal as error:  # damaged, or its key is destroyed: the others are found all the same
            log.warning("session_unreadable", session=key.session, tenant=key.tenant, error=error.code)
            return None, 0
        if head.deleted_at is not None or not may_see(principal, key, head.user):
            return None, 0
        matches, looked_at = await asyncio.to_thread(matches_of, state, words)
        return (SearchHit(head, matches) if matches else None), looked_at
