"""`/v1/usage`: what was used and what it cost, by day, user and model; and the rows themselves, one per response.

Who may ask for what is decided in `sessions.billing.metering.allowed_query`. Sums are paged by their group, rows by
their numbers, so that rows that come meanwhile are at the end of the last page; on PostgreSQL one that was being
committed may be behind the cursor already (the stream of rows misses none).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request

from sessions.billing.metering import PAGE_MAX, UsageGroup, UsageStore, allowed_query, entry_public, total_public
from sessions.model.errors import BadInput, Unavailable
from transport.gateway import Gateway
from transport.http.routes.tickets import principal_of
from transport.http.strict_json import StrictRoute
from transport.openai.response_models import ERRORS

Name = Annotated[str | None, Query(max_length=256)]
Day = Annotated[str | None, Query(max_length=10)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]

_decode_group = msgspec.json.Decoder(tuple[int, str, str, str]).decode


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(tags=["usage"], route_class=StrictRoute)

    def kept() -> UsageStore:
        if gateway.usage is None:
            raise Unavailable("usage_not_kept", "This server keeps no usage.", retryable=False)
        return gateway.usage

    @routes.get("/v1/usage", responses=ERRORS)
    async def usage(
        request: Request,
        first_day: Annotated[Day, Query(alias="from")] = None,
        last_day: Annotated[Day, Query(alias="to")] = None,
        group_by: Annotated[str | None, Query(max_length=64)] = None,
        tenant: Name = None,
        user: Name = None,
        model: Name = None,
        limit: Limit = 100,
        after: Annotated[str | None, Query(max_length=2048)] = None,
    ) -> dict[str, Any]:
        """Sums of tokens, responses and cost, by `group_by` (any of day, user, model; all by default), for the days
        from `from` to `to`, both included (UTC). Needs the scope `usage`; another tenant's is for operators."""
        query = allowed_query(
            principal_of(request, gateway),
            tenant=tenant,
            user=user,
            model=model,
            first_day=first_day,
            last_day=last_day,
            by=group_by,
        )
        found = await kept().totals(query, after=None if after is None else group_of(after), limit=limit + 1)
        page = found[:limit]
        return {
            "object": "list",
            "tenant": query.tenant,
            "data": [total_public(total, query.by) for total in page],
            "has_more": len(found) > limit,
            "last_id": cursor_of(page[-1].group) if page else None,
        }

    @routes.get("/v1/usage/responses", responses=ERRORS)
    async def rows(
        request: Request,
        first_day: Annotated[Day, Query(alias="from")] = None,
        last_day: Annotated[Day, Query(alias="to")] = None,
        tenant: Name = None,
        user: Name = None,
        model: Name = None,
        limit: Limit = 100,
        after: Annotated[int, Query(ge=0, le=2**53 - 1)] = 0,
    ) -> dict[str, Any]:
        """The rows, one per response, in the order in which they were written; `after` is the last page's `last_id`."""
        query = allowed_query(
            principal_of(request, gateway),
            tenant=tenant,
            user=user,
            model=model,
            first_day=first_day,
            last_day=last_day,
        )
        found = await kept().entries(query, after=after, limit=limit + 1)
        page = found[:limit]
        return {
            "object": "list",
            "tenant": query.tenant,
            "data": [entry_public(entry) for entry in page],
            "has_more": len(found) > limit,
            "last_id": page[-1].seq if page else None,
        }

    return routes


def cursor_of(group: UsageGroup) -> str:
    return urlsafe_b64encode(msgspec.json.encode(msgspec.structs.astuple(group))).decode().rstrip("=")


def group_of(cursor: str) -> UsageGroup:
    """Raises BadInput for what no page has said."""
    try:
        return UsageGroup(*_decode_group(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))))
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadInput("invalid_request", "`after` is not the `last_id` of a page.", param="after") from error
