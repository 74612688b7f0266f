"""Devices and notices for tests of push."""

from __future__ import annotations

from typing import Any

from sessions.model.push import PushDelivery, PushNotice, PushSubscription, PushTarget, WebPushTarget, push_id
from sessions.model.types import ResponseId, SessionId, SessionKey, TenantId
from sessions.ports import Journal
from tests.support.stores.journals import ACME, NOW, a_log, patch


def a_device(name: str, user: str = "ü", *, tenant: str = ACME, **more: Any) -> PushSubscription:
    target = WebPushTarget(endpoint=f"https://push.example/{name}", p256dh="key", auth="secret")
    whose = TenantId(tenant)
    given = {"label": "Phone 🙂", "quiet": None, "created_at": NOW, **more}
    return PushSubscription(id=push_id(whose, user, target), tenant=whose, user=user, target=target, **given)


def a_notice(offset: int = 2, user: str = "ü") -> PushNotice:
    return PushNotice(user=user, cause="answer", response_id=ResponseId(f"resp_{offset}"), offset=offset)


async def noted(journal: Journal, session: str = "s", offset: int = 2, user: str = "ü") -> None:
    await a_log(journal, session, offset, head=patch(user=user), push=a_notice(offset, user))


def a_delivery(target: PushTarget | None = None, **more: Any) -> PushDelivery:
    """A row as a sender is given it."""
    tenant = TenantId("acme")
    to = target or WebPushTarget(endpoint="https://push.example/x", p256dh="k", auth="a")
    whose = {"tenant": tenant, "user": "ana", "target": to, "created_at": NOW}
    subscription = PushSubscription(id=push_id(tenant, "ana", to), **whose)  # type: ignore[arg-type]
    about: dict[str, Any] = {"user": "ana", "cause": "tool_call", "response_id": ResponseId("resp_1"), "offset": 7}
    return PushDelivery(
        key=SessionKey(tenant, SessionId("sess_ünï")),
        subscription_id=subscription.id,
        subscription=subscription,
        notice=PushNotice(**{**about, **more}),
        at=NOW,
        attempts=1,
    )
