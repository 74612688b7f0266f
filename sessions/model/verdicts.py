"""What filters say of texts: pure vocabulary. What becomes of it is `sessions.turn.output_pipeline`'s and
`sessions.actor.input_pipeline`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a filter found, and what the policy does about it. Its text is for no log and no reader: `kept`
    goes to the review case where the policy says that reviewers get it, and `text` to the audit log, which hashes it
    (`without_text`)."""

    category: str
    action: Literal["block", "redact", "flag", "retract"]
    start: int
    end: int
    score: float = 1.0
    model: str = ""  # name and version of the detector
    policy: str = ""  # version of the policy that decided
    review: bool = False  # a person is to look at it
    kept: str = ""
    text: str = ""  # where it is at hand

    @property
    def about(self) -> str:
        """Its category without the kind: what is counted."""
        return self.category.partition("/")[0]

    def __repr__(self) -> str:
        return f"Finding({self.category!r}, {self.action!r}, {self.start}, {self.end})"


def without_text(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """As they may stand in a log."""
    if not findings:
        return ()
    return tuple(
        msgspec.structs.replace(each, kept="", text="") if each.kept or each.text else each for each in findings
    )


def quoted(findings: Sequence[Finding], text: str, start: int = 0) -> tuple[Finding, ...]:
    """Findings with what they found in `text`, which begins at `start` in their count; those that began before it go
    without."""
    return tuple(
        each
        if each.start < start
        else msgspec.structs.replace(each, text=text[each.start - start : max(each.start, each.end) - start])
        for each in findings
    )


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter says of a text. `block` ends the turn; `redact` replaces [start, end) (code points); `flag` lets
    through. `retract` takes back what was shown: its span counts from the beginning of the answer's text, with what
    was shown before this run, and the answer goes on behind it unless `ends`.

    `findings` is what the verdict rests on; each is reported once.
    """

    action: Literal["pass", "block", "redact", "flag", "retract"]
    category: str = ""
    start: int = 0
    end: int = 0
    replacement: str = ""
    message: str = ""
    ends: bool = False
    findings: tuple[Finding, ...] = ()


PASS = Verdict(action="pass")
