"""What filters say of texts: pure vocabulary. What becomes of it is `sessions.pipeline`'s and `sessions.prepare`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a filter found, and what the policy does about it. The text itself does not stand here, unless the
    policy says that reviewers get it (`kept`): that goes to the review case and nowhere else (`without_text`)."""

    category: str
    action: Literal["block", "redact", "flag", "retract"]
    start: int
    end: int
    score: float = 1.0
    model: str = ""  # name and version of the detector
    policy: str = ""  # version of the policy that decided
    review: bool = False  # a person is to look at it
    kept: str = ""

    @property
    def about(self) -> str:
        """Its category without the kind: what is counted."""
        return self.category.partition("/")[0]


def without_text(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """As they may stand in a log."""
    return tuple(msgspec.structs.replace(each, kept="") if each.kept else each for each in findings)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter says of a text. `block` ends the turn; `redact` replaces [start, end) (code points); `flag` lets
    through. `retract` takes back what was shown: its span counts from the beginning of the answer's text, with what
    was told before this run, and the answer goes on behind it unless `ends`.

    `findings` is what the verdict rests on; each is said once.
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
