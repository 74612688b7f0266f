"""What filters write down of what they found: where, which rule and how sure; never the text, nor a hash of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.moderation.policy import Policy
from inference.moderation.scan import Hit
from sessions.verdicts import Finding

PATTERNS: str = "patterns/1"


class Reporter:
    """Makes findings under one policy."""

    def __init__(self, policy: Policy, models: dict[str, str] | None = None) -> None:
        self._version = policy.version
        self._models = models or {}

    def hit(self, hit: Hit, start: int, end: int) -> Finding:
        """`start` and `end` are of the text as it came."""
        return Finding(
            category=f"{hit.category}/{hit.kind}",
            action=hit.action,
            start=start,
            end=end,
            model=PATTERNS,
            policy=self._version,
        )

    def scored(
        self,
        name: str,
        action: Literal["block", "redact", "flag", "retract"],
        score: float,
        start: int,
        end: int,
    ) -> Finding:
        return Finding(
            category=name,
            action=action,
            start=start,
            end=end,
            score=round(score, 4),
            model=self._models.get(name, name),
            policy=self._version,
        )

    def named(self, hit: Hit, score: float) -> Finding:
        """A name that a model found."""
        return msgspec.structs.replace(
            self.hit(hit, hit.start, hit.end),
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
