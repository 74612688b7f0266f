"""`/v1/push`: the devices of a user that are told when an answer is there and nobody reads."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from sessions.governance.end_user_data import push_fields
from sessions.model.errors import BadInput, Forbidden
from sessions.model.push import (
    MINUTES_A_DAY,
    ApnsTarget,
    FcmTarget,
    PushId,
    PushKind,
    PushSubscription,
    PushTarget,
    QuietHours,
    WebPushTarget,
    push_id,
    subscriber_of,
    subscription_not_found,
)
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.strict_json import StrictRoute
from transport.openai.request_models import RequestModel
from transport.openai.response_models import ERRORS, ResponseModel
from transport.push.door import ENDPOINT_MAX, TOKEN_MAX, PushDoor

Minute = Annotated[int, Field(ge=0, lt=MINUTES_A_DAY)]
Key = Annotated[str, Field(min_length=1, max_length=128)]


class PushKeys(RequestModel):
    p256dh: Key
    auth: Key


class QuietHoursBody(RequestModel):
    """Hours without notices, in minutes of the day. If `start` is above `end` they go over midnight."""

    start: Minute
    end: Minute
    time_zone: Annotated[str, Field(min_length=1, max_length=64)]


class NewSubscription(RequestModel):
    """A device that shall get notices: for a browser the fields of its `PushSubscription.toJSON()`, for an app its
    `kind` and the device's `token`; and the user's choices."""

    kind: PushKind = "web_push"
    endpoint: Annotated[str, Field(min_length=1, max_length=ENDPOINT_MAX)] | None = None
    keys: PushKeys | None = None
    expirationTime: float | None = None  # set by browsers; not used: an expired device answers 410
    token: Annotated[str, Field(min_length=1, max_length=TOKEN_MAX)] | None = None
    sandbox: bool = False  # for APNs: the app is a development build
    label: Annotated[str, Field(max_length=64)] = ""
    quiet_hours: QuietHoursBody | None = None


class PushKeyObject(ResponseModel):
    """The key and the kinds that devices need to subscribe. `application_server_key` is for the browser's
    `pushManager.subscribe`; `kinds` are the kinds of devices that are supported."""

    object: Literal["push"] = "push"
    application_server_key: str
    kinds: list[PushKind]


class QuietHoursObject(ResponseModel):
    start: int
    end: int
    time_zone: str


class SubscriptionObject(ResponseModel):
    """A subscribed device. `service` is the host of a browser's push service, else the kind. The full address and the
    token are not shown."""

    object: Literal["push_subscription"] = "push_subscription"
    id: str
    kind: PushKind
    service: str
    label: str
    quiet_hours: QuietHoursObject | None
    created_at: int


class SubscriptionList(ResponseModel):
    object: Literal["list"] = "list"
    data: list[SubscriptionObject]


routes = APIRouter(tags=["push"], route_class=StrictRoute)


def _door(request: Request) -> PushDoor:
    door = gateway_of(request).push
    if door is None:
        raise Forbidden("push_disabled", "This server sends no pushes: see docs/push.md.")
    return door


def _target(body: NewSubscription) -> PushTarget:
    """Returns where notices are sent. Raises BadInput for fields that are missing or belong to another kind."""
    fields = {"endpoint": body.endpoint, "keys": body.keys, "token": body.token, "sandbox": body.sandbox or None}
    taken = {"web_push": ("endpoint", "keys"), "apns": ("token", "sandbox"), "fcm": ("token",)}[body.kind]
    for name, value in fields.items():
        if value is not None and name not in taken:
            raise BadInput("invalid_request", f"{name} is not for a subscription of kind {body.kind}.", param=name)
        if value is None and name in taken and name != "sandbox":
            raise BadInput("invalid_request", f"{name} is missing: kind {body.kind} has it.", param=name)
    if body.endpoint is not None and body.keys is not None:
        return WebPushTarget(endpoint=body.endpoint, p256dh=body.keys.p256dh, auth=body.keys.auth)
    token = body.token or ""
    return ApnsTarget(token=token.lower(), sandbox=body.sandbox) if body.kind == "apns" else FcmTarget(token=token)


@routes.get("/v1/push", responses=ERRORS)
async def server_key(request: Request) -> PushKeyObject:
    """Returns what devices of the caller's end user need to subscribe. It is empty, not an error, if this server sends
    no pushes or the key is of no end user: pages ask before they offer notices."""
    principal, door = principal_of(request, "read"), gateway_of(request).push
    if door is None or principal.user is None:
        return PushKeyObject(application_server_key="", kinds=[])
    return PushKeyObject(application_server_key=door.public_key, kinds=list(door.kinds))


@routes.get("/v1/push/subscriptions", responses=ERRORS)
async def subscriptions(request: Request) -> SubscriptionList:
    """Lists the caller's devices, oldest first."""
    principal = principal_of(request, "read")
    kept = await gateway_of(request).store.push.subscriptions(principal.tenant, subscriber_of(principal))
    return SubscriptionList(data=[SubscriptionObject.model_validate(push_fields(each)) for each in kept])


@routes.post("/v1/push/subscriptions", status_code=201, responses=ERRORS)
async def subscribe(request: Request, body: NewSubscription) -> SubscriptionObject:
    """Adds a device, or changes its settings. A device that belonged to another user then belongs to this one."""
    gateway, principal, door = gateway_of(request), principal_of(request, "chat"), _door(request)
    user = subscriber_of(principal)
    target = _target(body)
    quiet = None if body.quiet_hours is None else QuietHours(**body.quiet_hours.model_dump())
    door.check(target, quiet)
    subscription = PushSubscription(
        id=push_id(principal.tenant, user, target),
        tenant=principal.tenant,
        user=user,
        target=target,
        label=body.label,
        quiet=quiet,
        created_at=gateway.now_ms(),
    )
    await gateway.store.push.subscribe(subscription)
    return SubscriptionObject.model_validate(push_fields(subscription))


@routes.delete("/v1/push/subscriptions/{subscription}", status_code=204, responses=ERRORS)
async def unsubscribe(request: Request, subscription: str) -> None:
    """Removes a device; also on a server that sends no pushes any more."""
    principal = principal_of(request, "chat")
    store = gateway_of(request).store.push
    if not await store.unsubscribe(principal.tenant, subscriber_of(principal), PushId(subscription)):
        raise subscription_not_found(subscription)
