"""Filters a message before an engine sees it: the whole text at once, redacted in all places or refused.

Short texts are scanned right here; long ones, and all texts for classifiers, in a worker process, off the event loop.
A text is compared as it is and decoded once (`decoded_text`); an image is judged by a guard, or refused as one. A block
fails closed and a flag open when a classifier fails or is late. Where no worker could look at a text at all there is no
verdict: `Unavailable`, to be sent again.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

from inference.moderation.decoded_text import decode_text
from inference.moderation.findings import FindingReporter
from inference.moderation.normalize import Normalizer, fold_case, normalize_text
from inference.moderation.output_filter import Scores, mark_of, score_of
from inference.moderation.policy import Policy
from inference.moderation.scan import Hit, Scanner
from inference.moderation.worker_client import NotTaken
from sessions.model.errors import Unavailable
from sessions.model.types import InputImage, Principal
from sessions.model.verdicts import IMAGE_EXCERPT, PASS, Finding, Verdict

INLINE_MAX: Final = 2_048  # code points that are scanned on the loop, well below a millisecond

_GRAVEST: Final = ("block", "redact", "retract", "flag")

PASSED_MAX: Final = 8_192  # texts that are remembered, by their digests alone

Place = tuple[Hit, int, int]  # a hit, and where it is in the text as it came

JudgeImage = Callable[[str], Awaitable[tuple[float, str]]]
"""Returns the score of an image, given as a data URL, and its kind ("" for none)."""


class TextScan(Protocol):
    """Judges a text off the event loop. Returns two futures: the classifiers' scores (None if the policy has no
    classifiers), and the policy's hits as (hit, start, end) (None without `scan`)."""

    def __call__(
        self, tenant: str, text: str, *, scan: bool
    ) -> tuple[asyncio.Future[Scores] | None, asyncio.Future[list[Any]] | None]: ...


def scan_message(scanner: Scanner, text: str) -> list[Place]:
    """Returns every hit in a whole text and in its decoded form, with the smallest span of the text that holds it."""
    places = _places(scanner, text)
    if (decoded := decode_text(text)) is not None:
        known: dict[tuple[str, str], bytearray] = {}  # where hits of a category and action are already
        for hit, start, end in places:
            marks = known.setdefault((hit.category, hit.action), bytearray(len(text)))
            marks[start:end] = b"\1" * (end - start)
        spans = {
            (hit._replace(start=0, end=0), *decoded.span(start, end))
            for hit, start, end in _places(scanner, decoded.text)
        }
        for hit, start, end in spans:
            covered = known.get((hit.category, hit.action))
            if covered is None or covered.find(0, start, end) >= 0:
                places.append((hit._replace(kind=f"encoded {hit.kind}"), start, end))
    return sorted(places, key=lambda place: (*place[1:], place[0]))


def _places(scanner: Scanner, text: str) -> list[Place]:
    plain = normalize_text(text)
    if not (hits := scanner.find(plain, fold_case(plain))):
        return []
    normal = Normalizer()
    normal.feed(text)
    return [(hit, normal.place(hit.start), normal.end(hit.end)) for hit in hits]


class PassedTexts:
    """Remembers the texts that a filter has judged as a whole and let through without a finding; forgets the least
    recent first.

    The texts of a conversation are judged again at each turn, and so are the places where two of them meet. Each filter
    has an object of its own, so it belongs to one version of one policy. Tenants cannot learn from it what others have
    sent, not even by the time that an answer takes."""

    def __init__(self) -> None:
        self._secret = os.urandom(16)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def key(self, principal: Principal, text: str, *seam: int) -> bytes:
        given = f"{len(principal.tenant)} {principal.tenant} {seam} {text}".encode("utf-8", "surrogatepass")
        return blake2b(given, digest_size=16, key=self._secret).digest()

    def has(self, key: bytes) -> bool:
        if key not in self._known:
            return False
        self._known.move_to_end(key)
        return True

    def add(self, key: bytes) -> None:
        self._known[key] = None
        if len(self._known) > PASSED_MAX:
            self._known.popitem(last=False)


class PolicyInputFilter:
    """Filters messages by one policy; one filter serves all messages. With a guard no text is remembered, because the
    guard is a service whose judgement may change."""

    def __init__(
        self,
        policy: Policy,
        scanner: Scanner,
        judge: TextScan,
        *,
        models: dict[str, str] | None = None,
        judge_image: JudgeImage | None = None,
    ) -> None:
        """`judge_image` judges an image by its data URL; without it, a rule on images is on all of them."""
        self._policy = policy
        self._scanner = scanner
        self._models = policy.input.models
        self._judge = judge
        self._judge_image = judge_image
        self._report = FindingReporter(policy, policy.input, models)
        self._passed = PassedTexts()

    async def check(self, principal: Principal, text: str) -> Verdict:
        if not text or self._passed.has(key := self._passed.key(principal, text)):
            return PASS
        inline = len(text) <= INLINE_MAX
        judging, scanning = self._judge(principal.tenant, text, scan=not inline and not self._scanner.empty)
        findings: list[Finding] = []
        places: Sequence[Place] = ()
        if inline and not self._scanner.empty:
            places = scan_message(self._scanner, text)
        elif scanning is not None:
            try:
                places = [(Hit(*hit), start, end) for hit, start, end in await scanning]
            except Exception as error:  # whatever became of the worker: nothing has read the text
                if judging is not None:
                    judging.cancel()
                raise _unavailable() from error
        findings += [self._report.hit(hit, start, end, text=text, within=(start, end)) for hit, start, end in places]
        spans = [(start, end, mark_of(hit)) for hit, start, end in places if hit.action == "redact"]
        if judging is not None:
            findings += await self._classified(judging, text, spans)
        verdict = self._verdict(text, spans, findings)
        if verdict is PASS and "guard" not in self._models:
            self._passed.add(key)
        return verdict

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        if self._scanner.empty or self._passed.has(key := self._passed.key(principal, text, last, first)):
            return PASS
        places = [place for place in scan_message(self._scanner, text) if place[1] < last and place[2] > first]
        if not places:
            self._passed.add(key)
            return PASS
        findings = tuple(
            self._report.hit(hit, start, end, text=text, within=(start, end)) for hit, start, end in places
        )
        hit, start, _ = min(places, key=lambda place: _GRAVEST.index(place[0].action))
        return Verdict(
            action=hit.action,
            category=hit.category,
            start=start,
            end=max(end for each, _, end in places if each.action == hit.action),
            replacement=mark_of(hit) if hit.action == "redact" else "",
            message=self._policy.input_message,
            findings=findings,
        )

    async def check_image(self, principal: Principal, image: InputImage) -> Verdict:
        rule = self._policy.input.images
        if rule is None:
            return PASS
        score, kind = 1.0, ""
        if self._judge_image is not None:
            try:
                score, kind = await self._judge_image(image.image_url or "")
            except Exception:  # noqa: BLE001 - failed or late: the policy decides
                unjudged = self._report.unjudged("images", rule.action, 0, 1, text=IMAGE_EXCERPT)
                return self._verdict("", [], [unjudged])
            if score < rule.threshold:
                return PASS
        unsafe = self._report.scored("images", rule.action, score, 0, 1, kind=kind, text=IMAGE_EXCERPT)
        return self._verdict("", [], [unsafe])

    async def _classified(
        self, judging: asyncio.Future[Scores], text: str, spans: list[tuple[int, int, str]]
    ) -> list[Finding]:
        """Returns the findings of classifiers; adds the names to redact to `spans`. Raises Unavailable."""
        findings: list[Finding] = []
        scores: Scores
        try:
            scores = await judging
        except Exception as error:  # noqa: BLE001 - failed or late: the policy decides
            scores = dict.fromkeys(self._models, error)
        for name in self._models:
            rule = self._rule(name)
            if isinstance(scores[name], NotTaken) and rule.action in ("block", "redact"):
                raise _unavailable() from scores[name]
            if isinstance(scores[name], Exception):
                findings.append(self._report.unjudged(name, rule.action, 0, len(text), text=text))
            elif name == "entities":
                for kind, start, end, score in scores[name]:
                    if kind in rule.kinds:
                        hit = Hit(start, end, "pii", kind, rule.action)
                        findings.append(self._report.named(hit, score, text=text))
                        if rule.action == "redact":
                            spans.append((start, end, mark_of(hit)))
            elif (scored := score_of(scores[name])) is not None and scored[0] >= rule.threshold:
                findings.append(
                    self._report.scored(name, rule.action, scored[0], 0, len(text), kind=scored[1], text=text)
                )
        return findings

    def _rule(self, name: str) -> Any:
        return self._policy.input.pii if name == "entities" else getattr(self._policy.input, name)

    def _verdict(self, text: str, spans: list[tuple[int, int, str]], findings: list[Finding]) -> Verdict:
        recorded = tuple(findings)
        blocks = [finding for finding in findings if finding.action == "block"]
        unread = [
            finding for finding in findings if finding.action == "redact" and finding.category.endswith("/unjudged")
        ]
        for each in (*blocks, *unread):
            return Verdict(
                action="block",
                category=each.category.partition("/")[0],
                start=each.start,
                end=each.end,
                message=self._policy.input_message,
                findings=recorded,
            )
        if spans:
            return Verdict(
                action="redact",
                category="pii",
                start=0,
                end=len(text),
                replacement=redact_spans(text, spans),
                findings=recorded,
            )
        return Verdict(action="flag", findings=recorded) if recorded else PASS


def _unavailable() -> Unavailable:
    message = "What judges messages here is being started again: send this one once more."
    return Unavailable("filters_unavailable", message, retry_after_ms=1_000)


def redact_spans(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    """Replaces each span with its mark; where spans overlap, the first one counts."""
    pieces, at = [], 0
    for start, end, mark in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= at:
            pieces += [text[at:start], mark]
        at = max(at, end)
    return "".join([*pieces, text[at:]])
