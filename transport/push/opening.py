"""Makes push of the settings: the door of a gateway, the relay of a replica.

What sends them is imported only where the settings name a key: HTTP clients and tokens take a tenth of a second to
load.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from sessions.metrics import Metrics
from sessions.model.push import PushStore
from sessions.model.types import UnixMs
from transport.push.settings import PushSettings, sends_pushes

if TYPE_CHECKING:
    from transport.push.door import PushDoor


def push_door(settings: PushSettings) -> PushDoor | None:
    """Returns the door for subscriptions; None if the settings name no key. Raises BadInput. Blocking."""
    if not sends_pushes(settings):
        return None
    from transport.push.credentials import read_push_credentials
    from transport.push.door import PushDoor

    keys = read_push_credentials(settings)
    return PushDoor("" if keys.vapid is None else keys.vapid.public, keys.rules, keys.kinds)


def push_relays(
    settings: PushSettings, store: PushStore, now_ms: Callable[[], UnixMs], metrics: Metrics
) -> list[Coroutine[Any, Any, None]]:
    """Returns the coroutines that send push notices; an empty list if the settings name no key. Raises BadInput.
    Blocking."""
    if not sends_pushes(settings):
        return []
    from transport.push.credentials import open_senders, read_push_credentials
    from transport.push.relay import PushRelay

    keys = read_push_credentials(settings)

    async def relay() -> None:
        async with open_senders(keys, apns_url=settings.push_apns_url, fcm_url=settings.push_fcm_url, app=app) as all_:
            await PushRelay(store, all_, now_ms=now_ms, metrics=metrics).run()

    app = settings.push_apns_app
    return [relay()]
