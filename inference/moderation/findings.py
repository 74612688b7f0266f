"""Records what filters find for reviews and the audit log: where, by which rule, how sure, and whether a person looks.

Never the text, nor a hash of it, unless the policy gives it to reviewers (`review_text`).
"""

from __future__ import annotations

from typing import Final, Literal

from inference.moderation.policy import Policy, PolicySide
from inference.moderation.scan import Hit
from sessions.model.verdicts import Finding

PATTERNS: Final = "patterns/1"
AROUND: Final = 160  # code points on either side of a span, for reviewers
Action = Literal["block", "redact", "flag", "retract"]
Span = tuple[int, int]  # [start, end)


class FindingReporter:
    """Makes findings under one side of a policy. `text`: the judged text, for reviewers where the policy allows it."""

    def __init__(self, policy: Policy, side: PolicySide, models: dict[str, str] | None = None) -> None:
        """`models` are the versions of the side's classifiers."""
        self._version = policy.version
        self._keeps = policy.review_text
        self._review = {name: rule.review for name, rule in side.rules.items()}
        self._models = models or {}

    def hit(self, hit: Hit, start: int, end: int, *, text: str = "", within: Span = (0, 0)) -> Finding:
        """Makes the finding of a pattern or phrase at [start, end) of the original text; `within` is the same place in
        `text`."""
        kept = self._excerpt(text, within)
        return self._finding(hit.category, f"{hit.category}/{hit.kind}", hit.action, (start, end), PATTERNS, kept=kept)

    def scored(
        self, name: str, action: Action, score: float, start: int, end: int, *, kind: str = "", text: str = ""
    ) -> Finding:
        """Makes the finding of the classifier `name` for the passage [start, end). `kind` is the guard's own category
        for it."""
        category, model = (f"{name}/{kind}" if kind else name), self._models.get(name, name)
        kept = self._excerpt(text, (0, len(text)))
        return self._finding(name, category, action, (start, end), model, score=round(score, 4), kept=kept)

    def named(self, hit: Hit, score: float, *, text: str = "") -> Finding:
        """Makes the finding of a person's or place's name that a model found."""
        span, model = (hit.start, hit.end), self._models.get("entities", "entities")
        category, kept = f"{hit.category}/{hit.kind}", self._excerpt(text, span)
        return self._finding(hit.category, category, hit.action, span, model, score=round(score, 4), kept=kept)

    def unjudged(self, name: str, action: Action, start: int, end: int, *, text: str = "") -> Finding:
        """Makes the finding for a passage that the classifier `name` could not judge in time. `action` is what the
        policy does then."""
        rule, kept = ("pii" if name == "entities" else name), self._excerpt(text, (0, len(text)))
        return self._finding(rule, f"{name}/unjudged", action, (start, end), name, score=0.0, kept=kept)

    def _excerpt(self, text: str, span: Span) -> str:
        return text[max(0, span[0] - AROUND) : span[1] + AROUND] if self._keeps else ""

    def _finding(
        self, rule: str, category: str, action: Action, span: Span, model: str, *, score: float = 1.0, kept: str
    ) -> Finding:
        review = self._review.get(rule)
        return Finding(
            category=category,
            action=action,
            start=span[0],
            end=span[1],
            score=score,
            model=model,
            policy=self._version,
            review=action == "flag" if review is None else review,
            kept=kept,
        )
