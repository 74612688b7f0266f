"""A log as an iterator: what it yields, whom it is there for, and when it cannot go on."""

from __future__ import annotations

import asyncio

from sessions.model.errors import Unavailable
from sessions.model.events import OutputTextDelta
from sessions.model.types import LOCAL_PRINCIPAL, ResponseId
from tests.support.doors.transport import begun, created, delta, gateway_over, key_of, memory_sessions, retracted
from tests.support.virtual_time import advance, outcome, virtual
from transport.gateway import GatewayServices
from transport.openai.log_cursor import LogCursor
from transport.protocol.retraction import BLOT

ONE, TWO = ResponseId("one"), ResponseId("two")


async def test_a_page_is_scrubbed_of_what_was_retracted_later() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("secret", 3), delta(" rest", 4), retracted(0, 6, "x"))
    with LogCursor(gateway_over(sessions), LOCAL_PRINCIPAL, key_of("s")) as cursor:
        await cursor.check(4)
        deltas = [r.event.delta async for r in cursor.records(4, live=False) if isinstance(r.event, OutputTextDelta)]
        assert deltas == [BLOT * 6, " rest"]
        assert cursor.retracted(ResponseId("resp_1"), "test") and not cursor.retracted(ONE, "test")


@virtual
async def test_an_answer_that_nobody_can_be_writing_is_not_awaited_for_ever() -> None:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun())
    for attached, follows, ends in ((False, [ONE], True), (True, [ONE], False), (False, None, False)):
        services = GatewayServices(is_attached=lambda key, attached=attached: attached)  # type: ignore[misc]
        gateway = gateway_over(sessions, services=services)
        with LogCursor(gateway, LOCAL_PRINCIPAL, key_of("s"), follows=follows) as cursor:
            records = cursor.records(3)
            assert (await anext(records)).offset == 4
            waiting = asyncio.ensure_future(outcome(anext(records)))
            await advance(gateway.limits.silence_s - 1)
            assert not waiting.done()
            await advance(2.0)
            assert waiting.done() is ends
            if ends:
                error = waiting.result()
                assert isinstance(error, Unavailable) and error.code == "session_unavailable" and error.retryable
            waiting.cancel()
