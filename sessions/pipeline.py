"""The way of an answer from the engine to the log: stop strings, then output filters, then release.

Text is released in order, as soon as no stage holds it back. Tokens are accounted to the text that they decode to:
those wholly released go to the ledger with it; where a release ends inside a token, the released rest of that token's
text is the `tail`, which is tokenised anew when the ledger is next used (I8: the model remembers what was released).

      fed:  |tok 1|tok 2|tok 3 ...          released up to here: ^
      ledger = tok 1, tok 2;   tail = text of tok 3 before ^

Pure and synchronous; one object per engine run. A run that is continued after a failure needs no memory of the
text before it: what is released is never the beginning of a stop string or of a forbidden phrase, or it had been held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from sessions.ports import PASS, Chunk, OutputFilter, Verdict
from sessions.types import Json, pack_tokens


class Release(msgspec.Struct, frozen=True):
    """What may now be written to the log. `tokens` is packed; `tail` is the raw text behind them.

    `ended` says that the answer ends here by itself: nothing that comes later is wanted. `restart` says that the
    tail is not what the engine wrote: its run must be begun again from the ledger and the tail.
    """

    text: str
    tokens: bytes
    tail: str
    logprobs: tuple[Json, ...] = ()
    ended: Literal["stop", "content_filter"] | None = None
    restart: bool = False
    message: str = ""
    withheld_tokens: int = 0


class OutputPipeline:
    """Feeds on chunks, gives releases. After one with `ended` or `restart` the object is spent."""

    def __init__(self, stops: Sequence[str], filters: Sequence[OutputFilter], *, tail: str = "") -> None:
        """`tail` is what was released beyond the ledger before this run began; the run's prompt has its tokens."""
        self._stops = tuple(stops)
        self._beginnings = frozenset(stop[:length] for stop in self._stops for length in range(1, len(stop)))
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._filters = tuple(filters)
        self._text = ""  # from the end of the last wholly released token on
        self._start = 0  # position of self._text's beginning; positions count code points of everything fed
        self._released = 0
        self._cleared = 0  # what the stop strings let through
        self._pending: deque[tuple[int, tuple[int, ...]]] = deque()  # (end position, tokens), not wholly released
        self._mute: tuple[int, ...] = ()  # tokens whose text is still to come
        self._logprobs: list[Json] = []
        self._tail = tail  # goes out with the first release; replaced once a token of this run is released

    def feed(self, chunk: Chunk) -> Release | None:
        """The release that `chunk` makes possible, or None when everything is held back."""
        self._logprobs.extend(chunk.logprobs)
        if not chunk.text:
            self._mute += chunk.tokens
            return None
        self._text += chunk.text
        end = self._start + len(self._text)
        self._pending.append((end, self._mute + chunk.tokens))
        self._mute = ()
        if not self._stops and not self._filters:
            return self._release(end)
        return self._pass_on(end)

    def finish(self) -> Release | None:
        """The engine has ended by itself: nothing waits for a continuation any more."""
        end = self._start + len(self._text)
        if not self._filters:
            return self._release(end) if end > self._released else None
        release = self._filter(end)
        if release is not None and (release.ended or release.restart):
            return release
        limit, verdict = self._merge([each.finish() for each in self._filters])
        late = self._verdict(limit, verdict)
        return _joined(release, late)

    def _pass_on(self, end: int) -> Release | None:
        open_text = self._text[self._cleared - self._start :]
        found = [at for stop in self._stops if (at := open_text.find(stop)) >= 0]
        if found:
            limit = self._cleared + min(found)
            release = self._filter(limit)
            if release is not None and (release.ended or release.restart):
                return release
            last = None
            if self._filters:
                last = self._verdict(*self._merge([each.finish() for each in self._filters]))
            elif limit > self._released:
                last = self._release(limit)
            joined = _joined(release, last)
            if joined is None:
                return Release("", b"", self._present_tail(), ended="stop")
            return joined if joined.ended or joined.restart else msgspec.structs.replace(joined, ended="stop")
        return self._filter(end - held_back_exactly(open_text, self._beginnings, self._reach))

    def _filter(self, limit: int) -> Release | None:
        """Lets the filters see up to `limit`, and releases what they all agree to."""
        text = self._text[self._cleared - self._start : limit - self._start]
        self._cleared = max(self._cleared, limit)
        if not self._filters:
            return self._release(limit) if limit > self._released else None
        if not text:
            return None
        return self._verdict(*self._merge([each.feed(text) for each in self._filters]))

    def _merge(self, answers: list[tuple[int, Verdict]]) -> tuple[int, Verdict]:
        """The earliest limit, and the gravest verdict at the earliest place."""
        limit = min(answer[0] for answer in answers)
        acting = [verdict for _, verdict in answers if verdict.action in ("block", "redact")]
        if not acting:
            return limit, PASS
        verdict = min(acting, key=lambda each: (each.start, each.action != "block"))
        return min(limit, verdict.start), verdict

    def _verdict(self, limit: int, verdict: Verdict) -> Release | None:
        if verdict.action not in ("block", "redact"):
            return self._release(limit) if limit > self._released else None
        before = self._release(limit) if limit > self._released else Release("", b"", self._present_tail())
        withheld = sum(len(tokens) for _, tokens in self._pending) + len(self._mute)
        if verdict.action == "block":
            return msgspec.structs.replace(
                before, ended="content_filter", message=verdict.message, withheld_tokens=withheld
            )
        return msgspec.structs.replace(
            before,
            text=before.text + verdict.replacement,
            tail=before.tail + verdict.replacement,
            restart=True,
            withheld_tokens=withheld,
        )

    def _release(self, limit: int) -> Release:
        text = self._text[self._released - self._start : limit - self._start]
        self._released = limit
        whole: list[int] = []
        while self._pending and self._pending[0][0] <= limit:
            end, tokens = self._pending.popleft()
            whole.extend(tokens)
            self._text = self._text[end - self._start :]
            self._start = end
            self._tail = ""
        logprobs, self._logprobs = tuple(self._logprobs), []
        packed = pack_tokens(whole) if whole else b""
        return Release(text, packed, self._present_tail(), logprobs)

    def _present_tail(self) -> str:
        return self._tail + self._text[: self._released - self._start]


def held_back_exactly(text: str, beginnings: frozenset[str], reach: int) -> int:
    """Like `held_back`, but case counts: stop strings are compared as they are."""
    if not reach:
        return 0
    end = text[-reach:]
    for length in range(len(end), 0, -1):
        if end[-length:] in beginnings:
            return length
    return 0


def _joined(first: Release | None, second: Release | None) -> Release | None:
    if first is None or second is None:
        return first or second
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        tokens=first.tokens + second.tokens,
        logprobs=first.logprobs + second.logprobs,
    )
