"""What filters write down of what they found: hashes in place of texts, unless the policy asks for these."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from inference.moderation.policy import Policy
from inference.moderation.scan import Hit
from sessions.verdicts import Finding

PATTERNS: str = "patterns/1"
EXCERPT: int = 400  # code points around a hit, where texts are kept


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Reporter:
    """Makes findings under one policy."""

    def __init__(self, policy: Policy, models: dict[str, str] | None = None) -> None:
        self._version = policy.version
        self._texts = policy.audit_texts
        self._models = models or {}

    def hit(self, hit: Hit, plain: str, start: int, end: int) -> Finding:
        """`start` and `end` are of the text as it came; `plain` is what was looked at."""
        span = plain[hit.start : hit.end]
        return Finding(
            category=f"{hit.category}/{hit.kind}",
            action=hit.action,
            start=start,
            end=end,
            model=PATTERNS,
            policy=self._version,
            digest=digest_of(span),
            text=span[:EXCERPT] if self._texts else None,
        )

    def scored(
        self,
        name: str,
        action: Literal["block", "redact", "flag", "retract"],
        score: float,
        start: int,
        end: int,
        text: str = "",
    ) -> Finding:
        return Finding(
            category=name,
            action=action,
            start=start,
            end=end,
            score=round(score, 4),
            model=self._models.get(name, name),
            policy=self._version,
            digest=digest_of(text) if text else "",
            text=text[:EXCERPT] if text and self._texts else None,
        )

    def named(self, hit: Hit, span: str, score: float) -> Finding:
        """A name that a model found."""
        return msgspec.structs.replace(
            self.hit(Hit(0, len(span), *hit[2:]), span, hit.start, hit.end),
            score=round(score, 4),
            model=self._models.get("entities", "entities"),
        )

    def unjudged(
        self, name: str, action: Literal["block", "redact", "flag", "retract"], start: int, end: int
    ) -> Finding:
        """A classifier erred or was late: what the policy makes of that."""
        return Finding(
            category=f"{name}/unjudged",
            action=action,
            start=start,
            end=end,
            score=0.0,
            model=name,
            policy=self._version,
        )
