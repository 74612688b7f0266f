"""Two engines as one: who answers which model, and pairs whose ledgers do not fit are refused."""

from __future__ import annotations

from inference.brownout_engine import CombinedHoldings
from inference.kv.tenant_quota import KvHoldings
from inference.simulated import SimulatedOptions
from sessions.model.types import TenantId

LARGE = SimulatedOptions(model="large", context_window=1024, kv_tokens_max=8192)


def test_what_is_left_of_a_ceiling_is_what_the_other_does_not_hold() -> None:
    held = {"main": 30, "smaller": 5}
    main, smaller = KvHoldings(lambda tenant: held["main"]), KvHoldings(lambda tenant: held["smaller"])
    together, tenant = CombinedHoldings(main, smaller), TenantId("t")
    assert together.bytes_of(tenant) == 35 and main.ceiling(tenant) is None
    together.ceiling = lambda _: 40
    assert (main.ceiling(tenant), smaller.ceiling(tenant)) == (35, 10)
    held["main"] = 90
    assert smaller.ceiling(tenant) == 0
