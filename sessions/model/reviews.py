"""Review cases: verdicts of filters that a person is to look at, claims, decisions and appeals.

    open ──claim──> claimed ──decide──> decided (upheld | overturned)
      ^                │ lapses after CLAIM_MS       │
      └────────────────┘        <──── an appeal, once┘

A case is of one answer or one message, one category and one action: what is found again there adds none. Its id follows
from these, so an append that is repeated opens nothing twice. It is written in the transaction of the append that
reports what was found. It holds places and rules, and text only where the tenant's policy says so (`Finding.kept`) or
where its author gave it (a note); a reviewer who may read the session reads the rest in the log, around `offset`.

An outcome changes nothing in the log but for its event (`review.decided`): text that was withheld never
got an offset and gets none, text that was taken back stays so. It is a word to the user, and a figure for whoever
writes the policy: of what a category finds, which share is upheld.

Every transition compares what is there with what must be there, and is answered the same when it is sent again with its
command id. Bounds: `CASES_MAX` per tenant, `OPEN_MS` without a decision, `DECIDED_MS` after one; `tidy` keeps them, and
a flood of findings pushes out findings, never appeals before them. Cases go with their session when it is purged.

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
KEPT_MAX: Final = 4_000  # of a text that is kept
FEEDBACK: Final = "feedback"  # the category of a case that a rating opened


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case as it stands. `kept`, `note` and `remark` are texts: of what was found, of who appeals, of who decides;
    a list of cases leaves them out."""

    id: ReviewId
    key: SessionKey
    cause: Cause  # what opened it
    direction: Literal["input", "output"]
    action: Literal["block", "redact", "flag", "retract"]
    category: str
    score: float
    model: str
    policy: str  # version
    user: str | None  # whose session it is
    response_id: ResponseId | None = None  # of an answer
    item_id: ItemId | None = None  # of a message that went on
    offset: int  # the log's top when it was found
    start: int  # code points of the text as it came
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
    told: bool = True  # the session's log knows of the last decision, or need not

    @property
    def about(self) -> str:
        return self.category.partition("/")[0]

    @property
    def concerns_user(self) -> bool:
        """The user saw that something was withheld, or appealed: they learn what was decided. Of a mere flag nobody
        informs them."""
        return self.action != "flag" or self.appealed_at is not None

    def standing(self, now: int) -> CaseState:
        """Its state; a claim that has lapsed is none."""
        return "open" if self.state == "claimed" and self.claimed_until <= now else self.state


class ReviewQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which cases; None: whatever. `state` as they stand at `now`."""

    now: UnixMs
    tenant: TenantId | None = None
    category: str | None = None  # with its kind (`pii/email`), or without for all kinds
    state: CaseState | None = None
    opened_before: UnixMs | None = None
    appealed: bool | None = None


class ReviewPosition(NamedTuple):
    """Where a page of cases ends: oldest first."""

    opened_at: int
    id: str


class Tidied(NamedTuple):
    """Cases that were let go: for their age, and for want of room."""

    aged: int
    crowded: int


class ReviewStore(Protocol):
    """The cases of a journal, beside what appends write. All raise Unavailable; writes OutcomeUnknown too."""

    async def find(self, review_id: ReviewId) -> Case | None: ...

    async def page(self, query: ReviewQuery, *, after: ReviewPosition | None, limit: int) -> list[Case]:
        """Oldest first, without their texts."""
        ...

    async def claim(self, review_id: ReviewId, *, by: str, now: UnixMs, command: str) -> Case:
        """Until now + CLAIM_MS; one's own claim is prolonged. Raises NotFound, Conflict."""
        ...

    async def decide(
        self, review_id: ReviewId, *, by: str, outcome: Outcome, remark: str, now: UnixMs, command: str
    ) -> Case:
        """By who claims it. Raises NotFound, Conflict."""
        ...

    async def undelivered(self, *, limit: int) -> list[Case]:
        """Decided, and the session's log does not say so yet."""
        ...

    async def mark_delivered(self, review_id: ReviewId, *, decision: int) -> None: ...

    async def tidy(self, *, now: UnixMs) -> Tidied: ...


# -- opening ------------------------------------------------------------------------------------------------------


def case_id(key: SessionKey, subject: str, finding: Finding) -> ReviewId:
    """120 bits of what the case is of."""
    parts = (key.tenant, key.session, subject, finding.about, finding.action)
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
    return ReviewId(f"rev_{b32encode(digest).decode()[:24].lower()}")


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A text that findings are about, and where it is."""

    key: SessionKey
    name: str  # of the answer, or of the sender and command of the message
    direction: Literal["input", "output"]
    user: str | None
    offset: int  # the log's end
    now: UnixMs
    response_id: ResponseId | None = None
    item_id: ItemId | None = None


def cases_to_open(findings: Iterable[Finding], of: Subject, *, known: Sequence[Finding] = ()) -> list[Case]:
    """The cases that findings marked for review open; not for what `known` ones of the same text have opened."""
    seen = {(each.about, each.action) for each in known if each.review}
    cases = []
    for finding in findings:
        if not finding.review or (finding.about, finding.action) in seen:
            continue
        seen.add((finding.about, finding.action))
        cases.append(case_of(finding, of))
    return cases


def case_of(finding: Finding, of: Subject, *, appeal: str | None = None) -> Case:
    """`appeal` is the note of who appeals; None: nobody did."""
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
    """Raises BadInput for a note that some store cannot hold, before anything is written for it."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise BadInput("invalid_text", f"Leave the NUL character or half surrogate pair out of `{param}`.", param=param)


def feedback_case(of: Subject, reason: str, *, model: str) -> Case:
    """Of an answer that somebody thinks badly of. `model` wrote it; `reason` is theirs."""
    finding = Finding(category=FEEDBACK, action="flag", start=0, end=0, model=model)
    case = case_of(finding, of)
    return msgspec.structs.replace(case, cause="feedback", note=reason[:NOTE_MAX])


_GRAVEST: Final = {"block": 0, "retract": 1, "redact": 2}


def appealable(findings: Sequence[Finding]) -> Finding | None:
    """What an appeal is against: the gravest thing that was done, the last of its kind. None: nothing was withheld."""
    acting = [each for each in reversed(findings) if each.action in _GRAVEST]
    return min(acting, key=lambda each: _GRAVEST[each.action], default=None)


def appealed(case: Case, appeal: Case) -> Case:
    """A case that is there, after an append that brought it once more: an appeal opens it again, the first time; a
    rating brings its new reason."""
    if appeal.cause == case.cause == FEEDBACK and case.state != "decided":
        return msgspec.structs.replace(case, note=appeal.note)
    if appeal.appealed_at is None or case.appealed_at is not None:
        return case
    return msgspec.structs.replace(
        case,
        appealed_at=appeal.appealed_at,
        note=appeal.note,
        state="open" if case.state == "decided" else case.state,
    )


# -- transitions --------------------------------------------------------------------------------------------------


def command_mark(command_id: str, by: str, *content: str) -> str:
    """Tells a repeat of a command id from its reuse for something else."""
    digest = hashlib.blake2b("\0".join((by, *content)).encode(), digest_size=8).hexdigest()
    return f"{hashlib.blake2b(f'{by}{chr(0)}{command_id}'.encode(), digest_size=12).hexdigest()}.{digest}"


def repeated_decision(case: Case | None, review_id: ReviewId, command: str, last: str) -> Case | None:
    """The answer to a command that was carried out before; None: it was not. Raises NotFound, Conflict."""
    if case is None:
        raise review_not_found(review_id)
    if last == command:
        return case
    if last and last.partition(".")[0] == command.partition(".")[0]:
        raise Conflict("idempotency_conflict", "This command id was used for another command.", param="id")
    return None


def check_claimable(case: Case, by: str, now: int) -> None:
    """Raises Conflict."""
    if case.state == "decided":
        raise Conflict("review_decided", "This case is decided.", param="review_id")
    if case.standing(now) == "claimed" and case.claimed_by != by:
        raise Conflict("review_claimed", "This case is claimed by another reviewer.", param="review_id", retryable=True)


def check_decidable(case: Case, by: str, now: int) -> None:
    """Raises Conflict."""
    check_claimable(case, by, now)
    if case.standing(now) != "claimed":
        raise Conflict("review_not_claimed", "Claim this case before you decide it.", param="review_id")


def review_not_found(review_id: str) -> NotFound:
    return NotFound("review_not_found", f"There is no review case {review_id!r}.", param="review_id")
