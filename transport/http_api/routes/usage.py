"""`/v1/usage`: what was used and what it cost, by day, user and model; and the rows themselves, one per response.

Who may see what is decided in `sessions.billing.metering.allowed_query`. Sums are paged by their group, rows by
their numbers, so that rows that come meanwhile are at the end of the last page; on PostgreSQL one that was being
committed may be behind the cursor already (the stream of rows misses none).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from sessions.billing.metering import PAGE_MAX, UsageGroup, allowed_query, entry_public, total_public
from sessions.model.errors import BadInput
from transport.http.paging import page_of
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.response_models import ERRORS

Name = Annotated[str | None, Query(max_length=256)]
Day = Annotated[str | None, Query(max_length=10)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]

_decode_group = msgspec.json.Decoder(tuple[int, str, str, str]).decode


routes = APIRouter(tags=["usage"], route_class=StrictRoute)


class UsageFilter(NamedTuple):
    """The filter of usage rows in a request's query. Fields are None if the query does not have them."""

    first_day: str | None
    last_day: str | None
    tenant: str | None
    user: str | None
    model: str | None


def _filter(
    first_day: Annotated[Day, Query(alias="from")] = None,
    last_day: Annotated[Day, Query(alias="to")] = None,
    tenant: Name = None,
    user: Name = None,
    model: Name = None,
) -> UsageFilter:
    return UsageFilter(first_day, last_day, tenant, user, model)


Filtered = Annotated[UsageFilter, Depends(_filter)]


@routes.get("/v1/usage", responses=ERRORS)
async def usage(
    request: Request,
    where: Filtered,
    group_by: Annotated[str | None, Query(max_length=64)] = None,
    limit: Limit = 100,
    after: Annotated[str | None, Query(max_length=2048)] = None,
) -> dict[str, Any]:
    """Adds up tokens, responses and cost by `group_by` (any of day, user, model; all by default) for the days `from` to
    `to`, both included (UTC). Needs the scope `usage`; another tenant's usage is for operators."""
    query = allowed_query(principal_of(request), by=group_by, **where._asdict())
    position = None if after is None else group_of(after)
    totals = await gateway_of(request).store.usage.totals(query, after=position, limit=limit + 1)
    return page_of(
        totals,
        limit,
        show=lambda total: total_public(total, query.by),
        cursor=lambda total: cursor_of(total.group),
        tenant=query.tenant,
    )


@routes.get("/v1/usage/responses", responses=ERRORS)
async def rows(
    request: Request,
    where: Filtered,
    limit: Limit = 100,
    after: Annotated[int, Query(ge=0, le=2**53 - 1)] = 0,
) -> dict[str, Any]:
    """Lists usage rows, one per response, in the order in which they were written. `after` is the last page's
    `last_id`."""
    query = allowed_query(principal_of(request), **where._asdict())
    entries = await gateway_of(request).store.usage.entries(query, after=after, limit=limit + 1)
    return page_of(entries, limit, show=entry_public, cursor=lambda entry: entry.seq, tenant=query.tenant)


def cursor_of(group: UsageGroup) -> str:
    return urlsafe_b64encode(msgspec.json.encode(msgspec.structs.astuple(group))).decode().rstrip("=")


def group_of(cursor: str) -> UsageGroup:
    """Returns the group that a page ended with, from its `last_id`. Raises BadInput if it is none."""
    try:
        return UsageGroup(*_decode_group(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))))
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadInput("invalid_request", "`after` is not the `last_id` of a page.", param="after") from error
