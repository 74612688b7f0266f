"""Records the use of what belongs to no session: embeddings, and prompts that are only scored."""

from __future__ import annotations

from sessions.billing.prices import PriceBook
from sessions.clock import Clock
from sessions.model.journal_types import UsageRow
from sessions.model.types import Principal, ResponseId, SessionId, SessionKey, Usage
from transport.gateway import Gateway


async def record_unlogged_use(
    gateway: Gateway, principal: Principal, model: str, tokens: int, *, place: SessionId, prefix: str
) -> None:
    """Records the usage of tokens that no session's log shows. `place` stands for the session, `prefix` begins the
    usage row's id. Raises Unavailable if the row cannot be stored; then the result must not be given out."""
    clock = Clock(gateway.now_ms, gateway.new_id)
    row = usage_row(principal, model, tokens, gateway.prices, clock, prefix=prefix)
    await gateway.store.usage.record(SessionKey(principal.tenant, place), row)


def usage_row(
    principal: Principal, model: str, tokens: int, prices: PriceBook, clock: Clock, *, prefix: str
) -> UsageRow:
    usage, at = Usage(tokens, 0), clock.now_ms()
    cost = prices.cost(model, usage, at)
    return UsageRow(
        response_id=ResponseId(f"{prefix}_{clock.new_id()}"),
        principal=principal,
        model=model,
        usage=usage,
        status="completed",
        recomputed_tokens=0,
        withheld_tokens=0,
        at=at,
        price_version=cost.version if cost is not None else "",
        currency=cost.currency if cost is not None else "",
        cost=cost.picos if cost is not None else 0,
    )
