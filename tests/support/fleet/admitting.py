"""The product's guards of a fleet's turns: admission by target at each replica, and a tenant's bucket of requests."""

from __future__ import annotations

from typing import Any, cast

from sessions.actor.admission import MARGIN, Admission
from sessions.limits import Bucket, Forecast, Limits, Target
from sessions.machine.inputs_and_effects import Command
from sessions.model import commands as cm
from sessions.model.errors import Overloaded
from sessions.model.types import CommandId, Principal, SessionKey
from sessions.ports import Engine


class _ForecastEngine:
    """What admission sees of an engine: the forecast of the turn that is judged."""

    class info:
        smaller_model = ""

    def __init__(self) -> None:
        self.next: Forecast | None = None

    def forecast(self, key: SessionKey, share: Any, new_tokens: int, model: str = "") -> Forecast | None:
        return self.next

    def expect(self, tenant: Any, response_id: Any, model: str = "") -> None:
        """The queue is simulated: what was let in is in it."""


class Admitting:
    """One `Admission` for each replica that has ever been near its target."""

    def __init__(self, ttft_ms: float) -> None:
        self.now_s = 0.0
        self.sure_s = MARGIN * ttft_ms / 1000  # a forecast up to here is let in, whatever else
        self._limits = Limits(targets={"default": Target(ttft_ms=ttft_ms)})
        self._engine = _ForecastEngine()
        self._each: dict[int, Admission] = {}

    def refused_for_s(self, replica: int, key: SessionKey, forecast: Forecast) -> float:
        """0: let in; else when its client may come again."""
        admission = self._each.get(replica)
        if admission is None:
            engine = cast(Engine, self._engine)
            admission = self._each[replica] = Admission(engine, lambda: self._limits, self._clock)
        self._engine.next = forecast
        principal = Principal(tenant=key.tenant, key_id="k")
        command = cm.MessageCreate(id=CommandId("c"), session=key.session, content="x")
        try:
            admission.admit(key, Command(principal, command, b""), 0, expected=False)
        except Overloaded as error:
            return (error.retry_after_ms or 0) / 1000
        return 0.0

    def _clock(self) -> float:
        return self.now_s


class TenantGuard:
    """The bucket of requests of one tenant, as every gateway shares it."""

    def __init__(self, requests_per_minute: int) -> None:
        self._ceiling = requests_per_minute
        self._bucket = Bucket(requests_per_minute, 0.0)

    def wait_s(self, now_s: float) -> float:
        self._bucket.look(self._ceiling, now_s * 1000)
        wait_ms = self._bucket.wait_ms(1)
        if not wait_ms:
            self._bucket.take(1)
        return wait_ms / 1000
