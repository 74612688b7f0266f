"""The findings and verdicts of filters on texts: pure vocabulary. `sessions.turn.output_pipeline` and
`sessions.actor.input_pipeline` act on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

IMAGE_EXCERPT: Final = "[image]"  # the text of a finding about an image, whose bytes no finding has


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a filter found, and what the policy does about it. Its texts are never in a session's log: `kept`
    goes to the review case if the policy lets reviewers see it, and `text` to the audit log, which hashes it
    (`without_text`)."""

    category: str
    action: Literal["block", "redact", "flag", "retract"]
    start: int
    end: int
    score: float = 1.0
    model: str = ""  # name and version of the detector
    policy: str = ""  # version of the policy that decided
    review: bool = False  # whether a person is to look at it
    kept: str = ""
    text: str = ""  # what was found, if the text is at hand

    @property
    def about(self) -> str:
        """The category without its kind (`pii` of `pii/email`), as metrics count it."""
        return self.category.partition("/")[0]

    def __repr__(self) -> str:
        return f"Finding({self.category!r}, {self.action!r}, {self.start}, {self.end})"


def without_text(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Returns findings without their texts, which must not be written to a log."""
    if not findings:
        return ()
    return tuple(
        msgspec.structs.replace(finding, kept="", text="") if finding.kept or finding.text else finding
        for finding in findings
    )


def quoted(findings: Sequence[Finding], text: str, start: int = 0) -> tuple[Finding, ...]:
    """Returns findings with the text that each found, taken from `text`. `start` is the position of the first code
    point of `text` in the findings' counting; findings that begin before it get no text."""
    return tuple(
        finding
        if finding.start < start
        else msgspec.structs.replace(
            finding, text=text[finding.start - start : max(finding.start, finding.end) - start]
        )
        for finding in findings
    )


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A filter's decision about a text. `block` ends the turn; `redact` replaces [start, end) (code points); `flag`
    lets the text through. `retract` takes back text that was shown: its span counts from the beginning of the answer's
    text, including what earlier runs have shown, and the answer goes on behind it unless `ends` is set.

    `findings` are the reasons for the verdict; each is reported once.
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
