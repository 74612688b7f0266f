"""Filters an answer while it is written (I8): the same for every text class, streamed or not.

`window`, the default: text goes on once nothing that is forbidden can begin in it any more, which for patterns is
mostly a word later, and for classifiers when the passage that it stands in has been judged. `async`: text goes on at
once; what proves to be forbidden is taken back. (`strict` is `window` whose answer the turn keeps to itself until
it is over.) An answer that may call tools is never `async`: a call that was made cannot be taken back.

A passage ends with a sentence, or after so many code points; a classifier sees the end of the one before as well. Its
judgement is awaited only at the answer's end. A block fails closed and a flag open when a classifier errs or is late.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from inference.moderation.findings import FindingReporter
from inference.moderation.normalize import Normalizer, fold_case
from inference.moderation.policy import Policy
from inference.moderation.scan import Hit, Scanner
from sessions.model.verdicts import PASS, Finding, Verdict

RETRACTED: Final = "[withheld]"
_SENTENCE: Final = re.compile(r"[.!?。！？]['\")\]]*\s|\n")

Scores = dict[str, Any]  # by classifier: a number from 0 to 1, or (it, kind); of "entities" spans; an exception
ClassifyText = Callable[[str, Sequence[str], float], "asyncio.Future[Scores]"]


class PolicyOutputFilter:
    """Filters an answer by phrases, patterns and encodings, at every token, without waiting."""

    def __init__(self, policy: Policy, scanner: Scanner, *, shown: str = "", calls: bool = False) -> None:
        """`shown`, `calls`: as in `FilterSet.output_filters`."""
        self._policy = policy
        self._scanner = scanner
        self._report = FindingReporter(policy, policy.output)
        self._late = policy.mode == "async" and not calls
        self._normal = Normalizer(escapes=calls)
        self._before = ""
        self._fed = 0  # code points fed in this run
        self._shown = len(shown) if self._late else 0
        if self._late:
            self._normal.feed(shown)

    def feed(self, text: str) -> tuple[int, Verdict]:
        self._fed += len(text)
        self._normal.feed(text)
        return self._scan(last=False)

    def finish(self) -> tuple[int, Verdict]:
        self._normal.finish()
        return self._scan(last=True)

    def _scan(self, *, last: bool) -> tuple[int, Verdict]:
        normal = self._normal
        plain = normal.plain
        folded = fold_case(plain)
        free = len(plain) if last else len(plain) - self._scanner.open(plain, folded)
        flags: list[Finding] = []
        if free > 0 and not self._scanner.empty:
            for hit in self._scanner.find(plain, folded, before=self._before, words=True):
                if hit.start >= free:
                    break
                start, end = normal.place(hit.start), normal.end(hit.end)
                if hit.action == "flag" and end <= self._shown:
                    continue  # reported when it was shown
                finding = self._report.hit(hit, start, end, text=plain, within=(hit.start, hit.end))
                flags.append(finding)
                if hit.action != "flag":
                    return self._act(hit, start, end, tuple(flags))
        allowed = normal.place(free)
        if free:
            self._before = plain[free - 1]
            normal.cut(free)
        if self._late:
            allowed = self._fed
        return allowed, Verdict(action="flag", findings=tuple(flags)) if flags else PASS

    def _act(self, hit: Hit, start: int, end: int, findings: tuple[Finding, ...]) -> tuple[int, Verdict]:
        if self._late:
            return self._fed, self._retracted(hit.category, start, end, findings, ends=hit.action == "block")
        if hit.action == "redact":
            mark = mark_of(hit)
            return start, Verdict(
                action="redact", category=hit.category, start=start, end=end, replacement=mark, findings=findings
            )
        return start, self._blocked(hit.category, start, end, findings)

    def _blocked(self, category: str, start: int, end: int, findings: tuple[Finding, ...]) -> Verdict:
        message = self._policy.output_message
        return Verdict(action="block", category=category, start=start, end=end, message=message, findings=findings)

    def _retracted(self, category: str, start: int, end: int, findings: tuple[Finding, ...], *, ends: bool) -> Verdict:
        return Verdict(
            action="retract",
            category=category,
            start=start,
            end=end,
            replacement=RETRACTED,
            message=self._policy.output_message,
            ends=ends,
            findings=findings,
        )


class _Passage(NamedTuple):
    start: int
    end: int
    text: str
    judgement: asyncio.Future[Scores]


class JudgedOutputFilter(PolicyOutputFilter):
    """Filters an answer by patterns and by classifiers, which judge its passages in the background.

    A verdict of a pattern takes effect once all passages before it are judged; until then no more text is released."""

    def __init__(
        self,
        policy: Policy,
        scanner: Scanner,
        classify: ClassifyText,
        *,
        models: dict[str, str] | None = None,
        shown: str = "",
        calls: bool = False,
    ) -> None:
        super().__init__(policy, scanner, shown=shown, calls=calls)
        self._report = FindingReporter(policy, policy.output, models)
        self._classify = classify
        self._models = policy.output.models
        self._text = shown if self._late else ""  # of the open passage, behind the end of the one before
        self._overlap = 0  # code points of it that are of the one before
        self._passage_at = 0  # where the open passage begins
        self._open: deque[_Passage] = deque()  # passages that are not judged yet
        self._waiting: tuple[int, Verdict] | None = None  # the patterns' verdict, and what was let through by then

    def feed(self, text: str) -> tuple[int, Verdict]:
        if self._waiting is not None:
            return self._judged()
        self._text += text
        while (length := self._passage_length()) is not None:
            self._close_passage(length)
        return self._judged(super().feed(text))

    def finish(self) -> tuple[int, Verdict]:
        return self._judged(super().finish() if self._waiting is None else None)

    async def settle(self) -> None:
        self._close_passage(len(self._text) - self._overlap)
        if self._open:
            await asyncio.wait([passage.judgement for passage in self._open])

    def _passage_length(self) -> int | None:
        """Returns the length, in code points, of the open passage if it can be closed now, else None."""
        found = _SENTENCE.search(self._text, self._overlap)
        if found is not None and found.end() - self._overlap <= self._policy.window:
            return found.end() - self._overlap
        return self._policy.window if len(self._text) - self._overlap >= self._policy.window else None

    def _close_passage(self, length: int) -> None:
        if length <= 0:
            return
        cut = self._overlap + length
        text = self._text[:cut]
        judgement = self._classify(text, self._models, self._policy.deadline_ms / 1000)
        self._open.append(_Passage(self._passage_at, self._passage_at + length, text, judgement))
        self._passage_at += length
        begin = max(0, cut - self._policy.overlap)
        self._text = self._text[begin:]
        self._overlap = cut - begin

    def _judged(self, scanned: tuple[int, Verdict] | None = None) -> tuple[int, Verdict]:
        """Returns up to where the text may be released, and the verdict of classifiers and patterns so far."""
        allowed, verdict = scanned or (0, PASS)
        findings = list(verdict.findings)
        if verdict.action in ("block", "redact", "retract"):
            self._waiting = (allowed, msgspec.structs.replace(verdict, findings=()))
            self._close_passage((self._fed + self._shown if self._late else verdict.start) - self._passage_at)
        while self._open and self._open[0].judgement.done():
            passage = self._open.popleft()
            acting = self._judge(passage, findings)
            if acting is None:
                continue
            category, action = acting
            recorded = tuple(findings)
            if self._late:
                ends = action == "block"
                return self._fed, self._retracted(category, passage.start, passage.end, recorded, ends=ends)
            return passage.start, self._blocked(category, passage.start, passage.end, recorded)
        waits = self._open[0].start if self._open else self._passage_at
        flagged = Verdict(action="flag", findings=tuple(findings)) if findings else PASS
        if self._waiting is not None:
            allowed, verdict = self._waiting
            if not self._open:
                return allowed, msgspec.structs.replace(verdict, findings=tuple(findings))
            return (allowed if self._late else min(allowed, waits)), flagged
        return (allowed if self._late else min(allowed, waits)), flagged

    def _judge(self, passage: _Passage, findings: list[Finding]) -> tuple[str, str] | None:
        """Adds the findings of a passage's judgement to `findings`. Returns the classifier and the action of the first
        finding whose action is more than a flag; None if there is none."""
        judgement, start, end = passage.judgement, passage.start, passage.end
        failed = judgement.cancelled() or judgement.exception() is not None
        for name in self._models:
            rule = getattr(self._policy.output, name)
            scored = None if failed else score_of(judgement.result()[name])
            if scored is None:
                findings.append(self._report.unjudged(name, rule.action, start, end, text=passage.text))
            elif scored[0] >= rule.threshold:
                findings.append(
                    self._report.scored(name, rule.action, scored[0], start, end, kind=scored[1], text=passage.text)
                )
            else:
                continue
            if rule.action != "flag":
                return name, rule.action
        return None


def score_of(value: Any) -> tuple[float, str] | None:
    """Returns (score, kind) of a classifier's result; None where this classifier failed, whatever the others did."""
    if isinstance(value, Exception):
        return None
    return (value[0], value[1]) if isinstance(value, tuple) else (value, "")


def mark_of(hit: Hit) -> str:
    """Returns the text that replaces a redacted one."""
    return f"[{hit.kind.removeprefix('encoded ')}]" if hit.category == "pii" else RETRACTED
