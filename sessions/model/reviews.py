"""Review cases: verdicts of filters that a person is to look at, claims, decisions and appeals.

    open ──claim──> claimed ──decide──> decided (upheld | overturned)
      ^                │ lapses after CLAIM_MS       │
      └────────────────┘        <──── an appeal, once┘

A case is about one answer or one message, one category and one action: further findings of that kind open no other
case. Its id is derived from these, so an append that is repeated opens nothing twice. It is written in the transaction
of the append that reports the findings. It has places and rules; it has text only if the tenant's policy says so
(`Finding.kept`) or its author gave it (a note). A reviewer who may read the session reads the rest in the log, around
`offset`.

A decision adds only its event (`review.decided`) to the log: text that was withheld never got an offset and gets none,
text that was taken back stays so. It informs the user, and shows the author of the policy which share of a category's
findings is upheld.

Every transition checks that the case is in the state that it needs, and has the same answer when it is sent again with
its command id. Bounds: `CASES_MAX` per tenant, `OPEN_MS` without a decision, `DECIDED_MS` after one. `tidy` drops cases
beyond them, appeals only after mere findings. Cases are deleted with their session when it is purged.

Does not know: who may review (`sessions.model.authorization`), how cases are stored, what a policy is.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, NewType, Protocol

import msgspec

from sessions.model.errors import BadInput, Conflict, NotFound
from sessions.model.types import ItemId, ResponseId, SessionKey, TenantId, UnixMs
from sessions.model.verdicts import Finding

ReviewId = NewType("ReviewId", str)
Outcome = Literal["upheld", "overturned"]
CaseState = Literal["open", "claimed", "decided"]
Cause = Literal["policy", "appeal", "feedback"]
Rating = Literal["up", "down"]

CLAIM_MS: Final = 30 * 60_000
OPEN_MS: Final = 90 * 86_400_000
DECIDED_MS: Final = 365 * 86_400_000
CASES_MAX: Final = 10_000  # per tenant
APPEALS_MAX: Final = 64  # per session
NOTE_MAX: Final = 4_000  # code points of a note
KEPT_MAX: Final = 4_000  # code points of a text that is kept, at most
FEEDBACK: Final = "feedback"  # the category of a case that a rating opened


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One review case. Its texts are `kept` (what the filter found), `note` (by who appeals) and `remark` (by who
    decides); lists of cases leave them out."""

    id: ReviewId
    key: SessionKey
    cause: Cause  # what opened it
    direction: Literal["input", "output"]
    action: Literal["block", "redact", "flag", "retract"]
    category: str
    score: float
    model: str
    policy: str  # version
    user: str | None  # the end user of the session
    response_id: ResponseId | None = None  # the answer that it is about
    item_id: ItemId | None = None  # the message that it is about, if that was let in
    offset: int  # the log's top at the time of the finding
    start: int  # in code points of the original text
    end: int
    kept: str = ""
    note: str = ""
    remark: str = ""
    opened_at: UnixMs
    appealed_at: UnixMs | None = None
    state: CaseState = "open"
    claimed_by: str = ""
    claimed_until: UnixMs = UnixMs(0)
    claim_command: str = ""
    outcome: Outcome | None = None
    decided_by: str = ""
    decided_at: UnixMs | None = None
    decide_command: str = ""
    decisions: int = 0
    told: bool = True  # whether the session's log has the last decision, or need not

    @property
    def about(self) -> str:
        return self.category.partition("/")[0]

    def standing(self, now: int) -> CaseState:
        """Returns the state at `now`; a claim that has lapsed counts as open."""
        return "open" if self.state == "claimed" and self.claimed_until <= now else self.state


class ReviewQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for review cases; a field that is None does not restrict them. `state` is the state at `now`."""

    now: UnixMs
    tenant: TenantId | None = None
    category: str | None = None  # with its kind (`pii/email`), or without it for all kinds
    state: CaseState | None = None
    opened_before: UnixMs | None = None
    appealed: bool | None = None


class ReviewPosition(NamedTuple):
    """The last case of a page; cases are ordered oldest first."""

    opened_at: int
    id: str


class Tidied(NamedTuple):
    """How many cases were dropped: for their age, and for want of room."""

    aged: int
    crowded: int


class ReviewStore(Protocol):
    """The review cases of a journal, except what appends write. All methods raise Unavailable; those that write also
    OutcomeUnknown."""

    async def find(self, review_id: ReviewId) -> Case | None: ...

    async def page(self, query: ReviewQuery, *, after: ReviewPosition | None, limit: int) -> list[Case]:
        """Returns cases, oldest first, without their texts."""
        ...

    async def claim(self, review_id: ReviewId, *, by: str, now: UnixMs, command: str) -> Case:
        """Claims a case for `by` until `now` + CLAIM_MS, or prolongs their claim. Raises NotFound, Conflict."""
        ...

    async def decide(
        self, review_id: ReviewId, *, by: str, outcome: Outcome, remark: str, now: UnixMs, command: str
    ) -> Case:
        """Decides a case that `by` has claimed. Raises NotFound, Conflict."""
        ...

    async def undelivered(self, *, limit: int) -> list[Case]:
        """Returns decided cases whose decision is not in their session's log yet."""
        ...

    async def mark_delivered(self, review_id: ReviewId, *, decision: int) -> None: ...

    async def tidy(self, *, now: UnixMs) -> Tidied: ...


# -- opening ------------------------------------------------------------------------------------------------------


def case_id(key: SessionKey, subject: str, finding: Finding) -> ReviewId:
    """Returns a case's id: 120 bits of a hash of the text, category and action that it is about."""
    parts = (key.tenant, key.session, subject, finding.about, finding.action)
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
    return ReviewId(f"rev_{b32encode(digest).decode()[:24].lower()}")


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A text that findings are about, and where it is."""

    key: SessionKey
    name: str  # id of the answer; or the message's sender and command
    direction: Literal["input", "output"]
    user: str | None
    offset: int  # the log's top
    now: UnixMs
    response_id: ResponseId | None = None
    item_id: ItemId | None = None


def cases_to_open(findings: Iterable[Finding], of: Subject, *, known: Sequence[Finding] = ()) -> list[Case]:
    """Returns the cases to open for the findings that are marked for review. A finding of the same category and action
    as one in `known`, earlier findings of the text, opens none."""
    seen = {(finding.about, finding.action) for finding in known if finding.review}
    cases = []
    for finding in findings:
        if not finding.review or (finding.about, finding.action) in seen:
            continue
        seen.add((finding.about, finding.action))
        cases.append(case_of(finding, of))
    return cases


def case_of(finding: Finding, of: Subject, *, appeal: str | None = None) -> Case:
    """Returns a new case about a finding. `appeal` is the note of whoever appeals; None if nobody did."""
    return Case(
        id=case_id(of.key, of.name, finding),
        key=of.key,
        cause="policy" if appeal is None else "appeal",
        direction=of.direction,
        action=finding.action,
        category=finding.category,
        score=finding.score,
        model=finding.model,
        policy=finding.policy,
        user=of.user,
        response_id=of.response_id,
        item_id=of.item_id,
        offset=of.offset,
        start=finding.start,
        end=finding.end,
        kept=finding.kept[:KEPT_MAX],
        note=(appeal or "")[:NOTE_MAX],
        opened_at=of.now,
        appealed_at=None if appeal is None else of.now,
    )


def check_note(text: str, param: str) -> None:
    """Raises BadInput for a note with characters that not every store can hold. It must be called before anything is
    written."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise BadInput("invalid_text", f"Leave the NUL character or half surrogate pair out of `{param}`.", param=param)


def feedback_case(of: Subject, reason: str, *, model: str) -> Case:
    """Returns a case about an answer that was rated badly. `model` wrote the answer; `reason` is the rater's text."""
    finding = Finding(category=FEEDBACK, action="flag", start=0, end=0, model=model)
    case = case_of(finding, of)
    return msgspec.structs.replace(case, cause="feedback", note=reason[:NOTE_MAX])


_GRAVEST: Final = {"block": 0, "retract": 1, "redact": 2}


def appealable(findings: Sequence[Finding]) -> Finding | None:
    """Returns the finding that an appeal is about: the last one with the gravest action; None if nothing was
    withheld."""
    acting = [finding for finding in reversed(findings) if finding.action in _GRAVEST]
    return min(acting, key=lambda finding: _GRAVEST[finding.action], default=None)


# -- transitions --------------------------------------------------------------------------------------------------


def command_mark(command_id: str, by: str, *content: str) -> str:
    """Returns a mark made from a command id and its contents. Marks are equal for a repeat of the command, and differ
    if the id is used for something else."""
    digest = hashlib.blake2b("\0".join((by, *content)).encode(), digest_size=8).hexdigest()
    return f"{hashlib.blake2b(f'{by}{chr(0)}{command_id}'.encode(), digest_size=12).hexdigest()}.{digest}"


def repeated_decision(case: Case | None, review_id: ReviewId, command: str, last: str) -> Case | None:
    """Returns the case if this command was carried out before, as `last`, the mark of the last one, shows; else None.
    Raises NotFound, Conflict."""
    if case is None:
        raise review_not_found(review_id)
    if last == command:
        return case
    if last and last.partition(".")[0] == command.partition(".")[0]:
        raise Conflict("idempotency_conflict", "This command id was used for another command.", param="id")
    return None


def check_claimable(case: Case, by: str, now: int) -> None:
    """Raises Conflict if a reviewer cannot claim the case, because it is decided, or claimed by another."""
    if case.state == "decided":
        raise Conflict("review_decided", "This case is decided.", param="review_id")
    if case.standing(now) == "claimed" and case.claimed_by != by:
        raise Conflict("review_claimed", "This case is claimed by another reviewer.", param="review_id", retryable=True)


def check_decidable(case: Case, by: str, now: int) -> None:
    """Raises Conflict if a reviewer cannot decide the case, because it is decided, or not claimed by them."""
    check_claimable(case, by, now)
    if case.standing(now) != "claimed":
        raise Conflict("review_not_claimed", "Claim this case before you decide it.", param="review_id")


def review_not_found(review_id: str) -> NotFound:
    return NotFound("review_not_found", f"There is no review case {review_id!r}.", param="review_id")
