"""What filters write down of what they found: where, which rule and how sure, and whether a person is to look at it.

Never the text, nor a hash of it, unless the policy says that reviewers get it (`review_text`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from inference.moderation.policy import Policy, PolicySide
from inference.moderation.scan import Hit
from sessions.model.verdicts import Finding

PATTERNS: Final = "patterns/1"
AROUND: Final = 160  # code points on either side of what was found, for reviewers
Action = Literal["block", "redact", "flag", "retract"]


class FindingReporter:
    """Makes findings under one side of a policy. `text` is what was looked at: the span lies at `within` in it."""

    def __init__(self, policy: Policy, side: PolicySide, models: dict[str, str] | None = None) -> None:
        self._version = policy.version
        self._keeps = policy.review_text
        self._review = {name: rule.review for name, rule in side.rules.items()}
        self._models = models or {}

    def hit(self, hit: Hit, start: int, end: int, *, text: str = "", within: tuple[int, int] = (0, 0)) -> Finding:
        """`start` and `end` are of the text as it came."""
        return self._finding(
            hit.category, f"{hit.category}/{hit.kind}", hit.action, start, end, PATTERNS, text=text, within=within
        )

    def scored(
        self, name: str, action: Action, score: float, start: int, end: int, *, kind: str = "", text: str = ""
    ) -> Finding:
        """`kind`: what a guard says of which sort it is."""
        category, model = (f"{name}/{kind}" if kind else name), self._models.get(name, name)
        within = (0, len(text))
        return self._finding(name, category, action, start, end, model, score=round(score, 4), text=text, within=within)

    def named(self, hit: Hit, score: float, *, text: str = "") -> Finding:
        """A name that a model found."""
        found = self.hit(hit, hit.start, hit.end, text=text, within=(hit.start, hit.end))
        return msgspec.structs.replace(found, score=round(score, 4), model=self._models.get("entities", "entities"))

    def unjudged(self, name: str, action: Action, start: int, end: int, *, text: str = "") -> Finding:
        """A classifier erred or was late: what the policy makes of that."""
        rule = "pii" if name == "entities" else name
        category = f"{name}/unjudged"
        return self._finding(rule, category, action, start, end, name, score=0.0, text=text, within=(0, len(text)))

    def _finding(
        self,
        rule: str,
        category: str,
        action: Action,
        start: int,
        end: int,
        model: str,
        *,
        score: float = 1.0,
        text: str,
        within: tuple[int, int],
    ) -> Finding:
        wanted = self._review.get(rule)
        kept = text[max(0, within[0] - AROUND) : within[1] + AROUND] if self._keeps else ""
        return Finding(
            category=category,
            action=action,
            start=start,
            end=end,
            score=score,
            model=model,
            policy=self._version,
            review=action == "flag" if wanted is None else wanted,
            kept=kept,
        )
