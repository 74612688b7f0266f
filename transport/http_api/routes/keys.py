"""`/v1/keys`: API keys, for those who administer a tenant. A service's key administers its own, an operator's all.

A key is shown whole once, in the answer that makes it. Another tenant's key is like none at all, but to operators, who
see and revoke them. Nobody makes a key of an authority above their own.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from sessions.model.api_keys import ApiKey, ApiKeyRequest
from sessions.model.authorization import demand_administrator, demand_custody, is_foreign, may_grant
from sessions.model.errors import Forbidden, NotFound, Unavailable
from sessions.model.types import INTEGER_MAX, Authority, Principal, Scope, TenantId
from transport.auth.api_key_cache import ApiKeyCache, public_key_fields
from transport.http.paging import page_of
from transport.http_api.break_glass import record_break_glass
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai import request_models
from transport.openai.response_models import ERRORS, ListPage, ResponseModel

Id = Annotated[str, Path(pattern=r"^[a-z2-7]{12}$")]
Name = Annotated[str, Field(min_length=1, max_length=128)]
PAGE_MAX: Final = 1000


class KeyCreate(request_models.RequestModel):
    """A request for a new key. `expires_at` is unix time in milliseconds. Without `scopes` it gets those that its role
    usually needs. `reason`: why an operator makes a key for another tenant."""

    tenant: Name | None = None
    role: Authority = "user"
    user: Name | None = None
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=16)] | None = None
    name: Annotated[str, Field(max_length=128)] = ""
    expires_at: Annotated[int, Field(ge=0, le=INTEGER_MAX)] | None = None
    reason: Annotated[str, Field(max_length=512)] | None = None


class KeyObject(ResponseModel):
    object: Literal["key"]
    id: str
    tenant: str
    role: Authority
    user: str | None
    scopes: list[Scope]
    name: str
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None
    state: Literal["active", "expired", "revoked"]


class NewKeyObject(KeyObject):
    """A new key. `key` is the secret, which is never shown again."""

    key: str


class KeyList(ListPage[KeyObject]):
    """A page of keys, newest first."""


routes = APIRouter(tags=["keys"], route_class=StrictRoute)


def ring_of(request: Request) -> ApiKeyCache:
    """Returns the keys of this server. Raises Unavailable if it keeps none."""
    keys = gateway_of(request).keys
    if keys is None:
        raise Unavailable("keys_unavailable", "This server keeps no keys.", retryable=False)
    return keys


def key_object(request: Request, key: ApiKey) -> KeyObject:
    return KeyObject.model_validate(public_key_fields(key, gateway_of(request).now_ms()))


async def find_key(request: Request, principal: Principal, key_id: str) -> ApiKey:
    """Returns a key that the principal may administer. Raises Forbidden, NotFound, Unavailable."""
    demand_administrator(principal)
    ring = ring_of(request)
    await ring.refresh()
    key = ring.find(key_id)
    if key is None or (key.tenant != principal.tenant and principal.role != "operator"):
        raise NotFound("key_not_found", f"There is no key {key_id!r}.", param="key_id")
    return key


async def _untouched(request: Request, tenant: TenantId) -> bool:
    """Returns whether a tenant has no keys and nothing stored: no conversation (unlisted and deleted ones count until
    they are purged) and no audit row, which purged ones leave. Its first key then gives access to nobody's data."""
    gateway, ring = gateway_of(request), ring_of(request)
    await ring.refresh()
    if any(key.tenant == tenant for key in ring.all()) or gateway.access.names(tenant):
        return False
    store = gateway.store
    if await store.audit.head(tenant) is not None:
        return False
    if await store.journal.list_heads(tenant, user=None, limit=1, after=None):
        return False
    return (await store.tallies.tally(tenant, user=None, stored=True)).stored_bytes == 0


@routes.post("/v1/keys", status_code=201, responses=ERRORS)
async def create(request: Request, body: KeyCreate, response: Response) -> NewKeyObject:
    """Makes a key. Its secret is only in this answer. An operator may make a new tenant's first key; for a tenant that
    has keys or conversations an operator needs the scope `break_glass` and a `reason`."""
    principal = principal_of(request)
    gateway, scopes = gateway_of(request), tuple(body.scopes or ())
    if not may_grant(principal, body.role, scopes):
        raise Forbidden("forbidden", "A key makes none of more authority than its own.")
    tenant = demand_administrator(principal, body.tenant)
    if is_foreign(principal, tenant) and not await _untouched(request, tenant):
        demand_custody(principal, tenant, body.reason)
        await record_break_glass(gateway, principal, tenant, "key.created", body.reason)
    key_request = ApiKeyRequest(
        tenant=tenant,
        role=body.role,
        user=body.user,
        scopes=scopes or None,
        name=body.name,
        expires_at=body.expires_at,
    )
    key, written = await ring_of(request).create(key_request, by=principal)
    response.headers["cache-control"] = "no-store"
    return NewKeyObject.model_validate({**public_key_fields(key, gateway.now_ms()), "key": written})


@routes.get("/v1/keys", responses=ERRORS)
async def listed(
    request: Request,
    tenant: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> KeyList:
    """Lists keys, newest first: a tenant's, or all tenants' for an operator's key without `tenant`."""
    principal = principal_of(request)
    owner = demand_administrator(principal, tenant)
    everybodys = principal.role == "operator" and tenant is None
    ring = ring_of(request)
    await ring.refresh()
    keys = [key for key in ring.all() if everybodys or key.tenant == owner]
    if after is not None:
        places = [place for place, key in enumerate(keys) if key.id == after]
        if not places:
            raise NotFound("key_not_found", f"There is no key {after!r}.", param="after")
        keys = keys[places[0] + 1 :]
    page = page_of(keys, limit, show=lambda key: key_object(request, key), cursor=lambda key: key.id)
    return KeyList.model_validate(page)


@routes.get("/v1/keys/{key_id}", responses=ERRORS)
async def shown(request: Request, key_id: Id) -> KeyObject:
    """Returns one key, without its secret."""
    return key_object(request, await find_key(request, principal_of(request), key_id))


@routes.delete("/v1/keys/{key_id}", responses=ERRORS)
async def revoke(request: Request, key_id: Id) -> KeyObject:
    """Revokes a key for good: at once in this process, within a second in others. Its open connections end."""
    principal = principal_of(request)
    key = await find_key(request, principal, key_id)
    if not may_grant(principal, key.role):
        raise Forbidden("forbidden", "Only operators may revoke operators' keys.")
    revoked = await ring_of(request).revoke(key.id, by=principal)
    return key_object(request, revoked or key)
