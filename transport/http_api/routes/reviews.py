"""`/v1/reviews`: the queue of what people are to look at, for reviewers; and the appeals of those whom it is about.

Who sees which cases is `sessions.model.authorization.demand_reviewer`'s: a tenant's own with the scope `review`,
everybody's with an operator's key. A case holds places and rules; to read its conversation is another matter (`GET
/v1/sessions/...`, which an operator of another tenant may not). Claims and decisions are repeated by their
`Idempotency-Key`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import structlog
from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from sessions.model import commands as cm
from sessions.model.authorization import allows, demand_reviewer, is_foreign, may_see
from sessions.model.errors import BadInput, SessileError
from sessions.model.reviews import (
    NOTE_MAX,
    Case,
    CaseState,
    Cause,
    Outcome,
    Rating,
    ReviewId,
    ReviewPosition,
    ReviewQuery,
    command_mark,
    review_not_found,
)
from sessions.model.types import Principal, ResponseId, UnixMs
from transport.http.paging import page_of
from transport.http_api.context import command_id_of, gateway_of, principal_of
from transport.http_api.routes.conversations import key_of
from transport.http_api.strict_json import StrictRoute
from transport.openai import request_models
from transport.openai.response_models import ERRORS, ListPage, ResponseModel

ROUTE: Final = "reviews"
PAGE_MAX: Final = 200

Name = Annotated[str, Path(max_length=64)]
Response = Annotated[str, Path(max_length=128)]
Note = Annotated[str, Field(max_length=NOTE_MAX)]

log = structlog.get_logger(__name__)


class Decision(request_models.RequestModel):
    """A reviewer's decision. `note` is for later reviewers and the record; the user sees only the outcome."""

    outcome: Outcome
    note: Note = ""


class Appeal(request_models.RequestModel):
    note: Note = ""


class MessageAppeal(Appeal):
    """An appeal against a refusal. `content` is the refused message's text: it is not stored, so it is sent again."""

    content: Annotated[str, Field(min_length=1)]


class FeedbackChange(request_models.RequestModel):
    """An opinion of an answer. `rating` null removes the earlier one. `reason` is for reviewers."""

    rating: Rating | None
    reason: Note = ""


class ReviewObject(ResponseModel):
    """A review case. `start` and `end` are code points of the original text; `offset` is the log's when it was found.
    `mine`: the caller has claimed it. `readable`: the caller may read its session."""

    object: Literal["review"]
    id: str
    tenant: str
    session: str
    user: str | None
    cause: Cause
    direction: Literal["input", "output"]
    action: Literal["block", "redact", "flag", "retract"]
    category: str
    score: float
    model: str
    policy: str
    response_id: str | None
    item_id: str | None
    offset: int
    start: int
    end: int
    opened_at: int
    appealed_at: int | None
    state: CaseState
    claimed_by: str | None
    claimed_until: int | None
    outcome: Outcome | None
    decided_by: str | None
    decided_at: int | None
    decisions: int
    mine: bool
    readable: bool


class FullReviewObject(ReviewObject):
    """A review case with texts: the filtered `text`, if the tenant's policy keeps it, the appeal's `note` and the
    reviewer's `remark`. An operator's key of another tenant sees none of the three."""

    text: str | None
    note: str | None
    remark: str | None


class ReviewList(ListPage[ReviewObject]):
    """A page of review cases."""


class AppealObject(ResponseModel):
    object: Literal["review.appealed"]
    review_id: str
    session: str
    offset: int


class FeedbackObject(ResponseModel):
    """A stored opinion of an answer. `review_id`: the case that a thumbs-down opened."""

    object: Literal["response.feedback"]
    session: str
    response_id: str
    rating: Rating | None
    reason: str
    offset: int
    review_id: str | None


routes = APIRouter(tags=["reviews"], route_class=StrictRoute)


async def find_review(request: Request, principal: Principal, review_id: str) -> Case:
    """Returns a case that the principal may review. Raises NotFound, also for a case of another tenant."""
    tenant = demand_reviewer(principal)
    case = await gateway_of(request).store.reviews.find(ReviewId(review_id))
    if case is None or tenant not in (None, case.key.tenant):
        raise review_not_found(review_id)
    return case


def review_object(request: Request, case: Case, principal: Principal) -> dict[str, Any]:
    readable = allows(principal, "read") and may_see(principal, case.key, case.user)
    return {**review_fields(case, reviewer_of(principal), gateway_of(request).now_ms()), "readable": readable}


def full_review_object(request: Request, case: Case, principal: Principal) -> FullReviewObject:
    texts: dict[str, str | None] = {"text": case.kept or None, "note": case.note or None, "remark": case.remark or None}
    if is_foreign(principal, case.key.tenant):  # an operator sees that there is a case, not what people wrote
        texts = dict.fromkeys(texts)
    return FullReviewObject.model_validate({**review_object(request, case, principal), **texts})


@routes.get("/v1/reviews", responses=ERRORS)
async def queue(
    request: Request,
    tenant: Annotated[str | None, Query(max_length=128)] = None,
    category: Annotated[str | None, Query(max_length=64)] = None,
    state: CaseState | None = None,
    appealed: bool | None = None,
    older_than_s: Annotated[int | None, Query(ge=0, le=2**40)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    after: Annotated[str | None, Query(max_length=128)] = None,
) -> ReviewList:
    """Lists cases, oldest first: a tenant's, or all tenants' for an operator's key without `tenant`. `category` may be
    written with its kind (`pii/email`) or without."""
    gateway, principal = gateway_of(request), principal_of(request)
    now = gateway.now_ms()
    query = ReviewQuery(
        now=now,
        tenant=demand_reviewer(principal, tenant),
        category=category,
        state=state,
        appealed=appealed,
        opened_before=None if older_than_s is None else UnixMs(now - older_than_s * 1000),
    )
    position = None if after is None else parse_place(after)
    cases = await gateway.store.reviews.page(query, after=position, limit=limit + 1)
    page = page_of(
        cases,
        limit,
        show=lambda case: review_object(request, case, principal),
        cursor=lambda case: f"{case.opened_at}.{case.id}",
    )
    return ReviewList.model_validate(page)


@routes.get("/v1/reviews/{review_id}", responses=ERRORS)
async def read(request: Request, review_id: Name) -> FullReviewObject:
    """Returns one case, with the notes of its author and reviewers."""
    principal = principal_of(request)
    return full_review_object(request, await find_review(request, principal, review_id), principal)


@routes.post("/v1/reviews/{review_id}/claim", responses=ERRORS)
async def claim(request: Request, review_id: Name) -> FullReviewObject:
    """Claims a case for half an hour, or prolongs a claim. Until then no other reviewer can claim or decide it."""
    gateway, principal = gateway_of(request), principal_of(request)
    case = await find_review(request, principal, review_id)
    by = reviewer_of(principal)
    command = command_mark(command_id_of(request, principal, ROUTE), by, "claim", case.id)
    case = await gateway.store.reviews.claim(case.id, by=by, now=gateway.now_ms(), command=command)
    return full_review_object(request, case, principal)


@routes.post("/v1/reviews/{review_id}/decide", responses=ERRORS)
async def decide(request: Request, review_id: Name, body: Decision) -> FullReviewObject:
    """Decides a case that the caller has claimed. Readers who saw that something was withheld get the outcome; the text
    stays withheld."""
    gateway, principal = gateway_of(request), principal_of(request)
    before = await find_review(request, principal, review_id)
    by = reviewer_of(principal)
    command_id = command_id_of(request, principal, ROUTE)
    now = gateway.now_ms()
    if before.claimed_by == by and before.standing(now) == "claimed":
        detail = {"review": before.id, "category": before.category, "outcome": body.outcome}
        tenant, session = before.key
        await gateway.audit.record(
            tenant, "review.decided", by=principal, user=before.user, session=session, detail=detail
        )
    case = await gateway.store.reviews.decide(
        before.id,
        by=by,
        outcome=body.outcome,
        remark=body.note,
        now=now,
        command=command_mark(command_id, by, "decide", before.id, body.outcome, body.note),
    )
    if case.decisions > before.decisions:
        gateway.measures.reviews_decided.add(case.about, body.outcome)
        log.info("review_decided", review=case.id, tenant=case.key.tenant, by=by, outcome=body.outcome)
    if not case.told:
        try:
            await gateway.announce_decision(case)
        except SessileError as error:  # a replica's sweep delivers it
            log.warning("review_notice_failed", review=case.id, tenant=case.key.tenant, error=error.code)
    return full_review_object(request, case, principal)


@routes.post("/v1/sessions/{session}/responses/{response_id}/appeal", status_code=201, responses=ERRORS)
async def appeal(request: Request, session: Name, response_id: Response, body: Appeal) -> AppealObject:
    """Requests that a person reviews what a filter withheld of an answer. Possible once."""
    principal = principal_of(request, "chat")
    return await send_appeal(request, principal, session, response_id=ResponseId(response_id), note=body.note)


@routes.post("/v1/sessions/{session}/messages/appeal", status_code=201, responses=ERRORS)
async def message_appeal(request: Request, session: Name, body: MessageAppeal) -> AppealObject:
    """Requests that a person reviews a message that a filter refused. The filters run again: a message that they now
    accept cannot be appealed, it can be sent."""
    principal = principal_of(request, "chat")
    return await send_appeal(request, principal, session, content=body.content, note=body.note)


@routes.post("/v1/sessions/{session}/responses/{response_id}/feedback", responses=ERRORS)
async def feedback(request: Request, session: Name, response_id: Response, body: FeedbackChange) -> FeedbackObject:
    """Stores the sender's opinion of an answer in place of an earlier one. A thumbs-down opens a review case."""
    principal = principal_of(request, "chat")
    command = cm.FeedbackSet(
        id=command_id_of(request, principal, ROUTE),
        session=key_of(principal, session).session,
        response_id=ResponseId(response_id),
        rating=body.rating,
        reason=body.reason,
    )
    ok = await gateway_of(request).execute(principal, command)
    assert ok.offset is not None
    return FeedbackObject(
        object="response.feedback",
        session=session,
        response_id=response_id,
        rating=body.rating,
        reason=body.reason if body.rating is not None else "",
        offset=ok.offset,
        review_id=ok.review_id,
    )


async def send_appeal(request: Request, principal: Principal, session: str, **fields: Any) -> AppealObject:
    command_id = command_id_of(request, principal, ROUTE)
    command = cm.ReviewAppeal(id=command_id, session=key_of(principal, session).session, **fields)
    ok = await gateway_of(request).execute(principal, command)
    assert ok.review_id is not None and ok.offset is not None
    return AppealObject(object="review.appealed", review_id=ok.review_id, session=session, offset=ok.offset)


def reviewer_of(principal: Principal) -> str:
    """Returns the name of a reviewer, with the tenant: an operator may be of another tenant than the case."""
    return f"{principal.tenant}/{principal.id}"


def review_fields(case: Case, by: str, now: int) -> dict[str, Any]:
    state = case.standing(now)
    claimed = state == "claimed"
    return {
        **{name: getattr(case, name) for name in case.__struct_fields__ if name in ReviewObject.model_fields},
        "object": "review",
        "tenant": case.key.tenant,
        "session": case.key.session,
        "state": state,
        "claimed_by": case.claimed_by if claimed else None,
        "claimed_until": case.claimed_until if claimed else None,
        "decided_by": case.decided_by or None,
        "mine": claimed and case.claimed_by == by,
    }


def parse_place(text: str) -> ReviewPosition:
    """Returns the position that an `after` names. Raises BadInput if it is no `last_id` of a page."""
    opened_at, dot, name = text.partition(".")
    if not dot or not opened_at.isascii() or not opened_at.isdigit() or len(opened_at) > 16:
        raise BadInput("invalid_request", "`after` is not the `last_id` of a page.", param="after")
    return ReviewPosition(int(opened_at), name)
