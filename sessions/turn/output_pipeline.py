"""The stages of an answer from the engine to the log: stop strings, then output filters, then release.

Text is released in order, as soon as no stage holds it back. Tokens belong to the text that they decode to: those whose
text is released completely go to the ledger with it. If a release ends inside a token, the released part of that
token's text is the `tail`, which is tokenised anew when the ledger is next used (I8: the model remembers what was
released).

      fed:  |tok 1|tok 2|tok 3 ...          released up to here: ^
      ledger = tok 1, tok 2;   tail = text of tok 3 before ^

Pure and synchronous; one object per engine run. A run that is continued after a failure needs no memory of the text
before it: released text never ends with the beginning of a stop string or of a forbidden phrase, because that would
have been held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from sessions.model.generation import Chunk
from sessions.model.types import Json, Tokens, pack_tokens
from sessions.model.verdicts import Finding, Verdict, quoted
from sessions.ports import LateFilter, OutputFilter


class Release(msgspec.Struct, frozen=True):
    """Text and tokens that may now be written to the log. `tokens` are the packed ids of the text whose tokens are
    released completely; `tail` is the raw text behind it.

    `ended` says why the answer ends here by itself; what comes later is dropped. `restart` says that the tail is not
    what the engine wrote, so a new run must begin from the ledger and the tail.
    """

    text: str
    tokens: bytes
    tail: str
    logprobs: tuple[Json, ...] = ()
    ended: Literal["stop", "content_filter"] | None = None
    restart: bool = False
    message: str = ""
    withheld_tokens: int = 0
    retracted: Verdict | None = None  # a span to take back from readers, which may reach into this release


class OutputPipeline:
    """Turns an engine's chunks into releases. After a release with `ended` or `restart` the object must not be used any
    more.

    A filter that has blocked or redacted is fed no more; its verdict takes effect once all the others have let through
    the text before its span, so that the result does not depend on how the engine splits the text. Its attributes are
    many because text, tokens, log probabilities and verdicts are held back together and let through together.
    """

    def __init__(
        self,
        stops: Sequence[str],
        filters: Sequence[OutputFilter],
        *,
        tail: str = "",
        tail_tokens: Tokens = (),
    ) -> None:
        """`tail` is text that was released before this run but is not in the ledger; `tail_tokens` are its token ids in
        the run's prompt. They go to the ledger with the first token that follows them."""
        self._stops = tuple(stops)
        self._beginnings = beginnings(self._stops)
        self._reach = reach(self._stops)
        self._filters = tuple(filters)
        self._late = tuple(filter_ for filter_ in self._filters if isinstance(filter_, LateFilter))
        self.findings: list[Finding] = []  # since `take_findings`
        self.closing: Literal["stop", "end"] | None = None  # set once `close` has to be called
        self._verdicts: list[Verdict | None] = [None] * len(self._filters)  # by filter; None for those that do not act
        self._text = ""  # from the end of the last wholly released token on
        self._start = 0  # position of self._text's beginning; positions count code points of everything fed
        self._released = 0
        self._cleared = 0  # position up to which the stop strings let text through
        self._pending: deque[tuple[int, tuple[int, ...], tuple[Json, ...]]] = deque()  # (end position, tokens,
        # logprobs) of what is not wholly released
        self._mute: tuple[int, ...] = ()  # tokens whose text is still to come
        self._mute_logprobs: tuple[Json, ...] = ()
        self._tail = tail
        self._tail_tokens = tail_tokens

    def feed(self, chunk: Chunk) -> Release | None:
        """Takes a chunk; returns the release that it makes possible, or None if everything is held back."""
        if not chunk.text:
            self._mute += chunk.tokens
            self._mute_logprobs += chunk.logprobs
            return None
        if not self._filters and not self._stops:
            return self._pass_through(chunk)
        self._text += chunk.text
        end = self._start + len(self._text)
        self._pending.append((end, self._mute + chunk.tokens, self._mute_logprobs + chunk.logprobs))
        self._mute = self._mute_logprobs = ()
        return self._pass_on(end)

    def finish(self) -> Release | None:
        """Ends the text because the engine has ended: returns the last release, since text that was held back need not
        wait for a continuation any more."""
        stop = self._stop_in(self._text[self._cleared - self._start :])
        end = self._start + len(self._text) if stop is None else self._cleared + stop
        return self._last(end, stopped=stop is not None)

    @property
    def num_mute(self) -> int:
        """How many tokens have not brought any text yet. They are not counted as withheld."""
        return len(self._mute)

    def _pass_through(self, chunk: Chunk) -> Release:
        """Releases a whole chunk; only if there are no filters and no stop strings."""
        tokens, logprobs = chunk.tokens, chunk.logprobs
        if self._mute:
            tokens, logprobs = self._mute + tokens, self._mute_logprobs + logprobs
            self._mute = self._mute_logprobs = ()
        if tokens and self._tail:
            tokens = (*self._tail_tokens, *tokens)
        if tokens:
            self._tail = ""
        self._start += len(chunk.text)
        self._released = self._start
        return Release(chunk.text, pack_tokens(tokens), self._tail, logprobs)

    def _pass_on(self, end: int) -> Release | None:
        """Lets text up to `end` through that comes before a stop string, or before what may become one.

        The stop string that begins first ends the answer: if one is complete while an earlier one may still become so,
        it waits.
        """
        open_text = self._text[self._cleared - self._start :]
        held = held_back(open_text, self._beginnings, self._reach)
        stop = self._stop_in(open_text)
        if stop is not None and stop <= len(open_text) - held:
            return self._last(self._cleared + stop, stopped=True)
        return self._filter(end - held)

    def _stop_in(self, text: str) -> int | None:
        return min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)

    def _last(self, limit: int, *, stopped: bool) -> Release | None:
        """Passes on the remaining text up to `limit`, where the answer ends; text behind it is dropped. `stopped`: a
        stop string ends it."""
        release = self._filter(limit)
        if self._late and (release is None or not (release.ended or release.restart)):
            self.closing = "stop" if stopped else "end"
            return release
        if self._filters and (release is None or not (release.ended or release.restart)):
            release = _joined(release, self._run_filters(None))
        return self._stopped(release) if stopped else release

    async def close(self) -> Release | None:
        """Waits for the late filters and returns the last release; to be called once `closing` is set."""
        for each in self._late:
            await each.settle()
        release = self._run_filters(None)
        return self._stopped(release) if self.closing == "stop" else release

    def take_findings(self) -> list[Finding]:
        """Returns the filters' findings since the last call."""
        findings, self.findings = self.findings, []
        return findings

    def _stopped(self, release: Release | None) -> Release:
        if release is None:
            return Release("", b"", self._present_tail(), ended="stop")
        return release if release.ended or release.restart else msgspec.structs.replace(release, ended="stop")

    def _filter(self, limit: int) -> Release | None:
        """Passes the text up to `limit` to the filters, and releases what all of them allow."""
        text = self._text[self._cleared - self._start : limit - self._start]
        self._cleared = max(self._cleared, limit)
        if not self._filters:
            return self._release(limit) if limit > self._released else None
        return self._run_filters(text) if text else None

    def _run_filters(self, text: str | None) -> Release | None:
        """Feeds the filters with text, or ends them if it is None. Releases text up to the lowest limit that a filter
        sets, or acts on the verdict whose span begins first."""
        limit = self._cleared
        for index, each in enumerate(self._filters):
            if self._verdicts[index] is None:
                allowed, verdict = each.finish() if text is None else each.feed(text)
                if verdict.action in ("block", "redact"):  # what is let through stands in the log
                    self.findings += quoted(verdict.findings, self._text, self._start)
                else:
                    self.findings += verdict.findings
                if verdict.action == "retract":
                    return self._take_back(verdict, min(limit, allowed))
                if verdict.action in ("block", "redact"):
                    self._verdicts[index] = verdict
                else:
                    limit = min(limit, allowed)
        acting = [verdict for verdict in self._verdicts if verdict is not None]
        if acting:
            first = min(acting, key=lambda verdict: (verdict.start, verdict.action != "block"))
            # What is held back from the very place of a redaction may still be blocked there.
            if first.start < limit or (first.start == limit and (first.action == "block" or text is None)):
                return self._act(first)
            limit = min(limit, first.start)
        return self._release(limit) if limit > self._released else None

    def _act(self, verdict: Verdict) -> Release:
        before = Release("", b"", self._present_tail())
        if verdict.start > self._released:
            before = self._release(verdict.start)
        withheld = self._withhold()
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

    def _take_back(self, verdict: Verdict, limit: int) -> Release:
        """Releases what may be shown, so that the whole span to retract is shown, and requests its retraction."""
        before = self._release(limit) if limit > self._released else Release("", b"", self._present_tail())
        withheld = self._withhold()
        return msgspec.structs.replace(
            before,
            ended="content_filter" if verdict.ends else None,
            restart=not verdict.ends,
            message=verdict.message,
            withheld_tokens=withheld,
            retracted=verdict,
        )

    def _withhold(self) -> int:
        """Returns how many tokens a verdict withholds, each counted once, and forgets the tokens without text."""
        withheld = sum(len(tokens) for _, tokens, _ in self._pending) + len(self._mute)
        self._mute = self._mute_logprobs = ()
        return withheld

    def _release(self, limit: int) -> Release:
        text = self._text[self._released - self._start : limit - self._start]
        self._released = limit
        whole: list[int] = []
        logprobs: tuple[Json, ...] = ()
        while self._pending and self._pending[0][0] <= limit:
            end, tokens, of_tokens = self._pending.popleft()
            whole.extend(tokens)
            logprobs += of_tokens
            self._text = self._text[end - self._start :]
            self._start = end
        if whole:
            if self._tail:
                whole[:0] = self._tail_tokens
            self._tail = ""
        packed = pack_tokens(whole) if whole else b""
        return Release(text, packed, self._present_tail(), logprobs)

    def _present_tail(self) -> str:
        return self._tail + self._text[: self._released - self._start]


def beginnings(phrases: Sequence[str]) -> frozenset[str]:
    """Returns the proper prefixes of all phrases."""
    return frozenset(phrase[:length] for phrase in phrases for length in range(1, len(phrase)))


def reach(phrases: Sequence[str]) -> int:
    """Returns the length of the longest proper prefix of a phrase, in code points."""
    return max((len(phrase) for phrase in phrases), default=1) - 1


def held_back(text: str, beginnings: frozenset[str], reach: int) -> int:
    """Returns how many code points at the end of `text` may be the beginning of a phrase: the length of the longest
    such suffix."""
    end = text[-reach:] if reach else ""
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
