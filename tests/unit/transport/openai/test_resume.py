"""A reader that comes back by the id of an event."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from sessions.model.types import LOCAL_PRINCIPAL, Epoch, ResponseId
from tests.support.doors.transport import begun, created, delta, gateway_over, memory_sessions
from transport.gateway import Gateway
from transport.http.headers import EventId
from transport.openai.resume import resume

SEEN = EventId(Epoch("ep_s"), 5, ResponseId("resp_1"), "0" * 12)


async def opened() -> Gateway:
    sessions = await memory_sessions()
    await sessions.append("s", created(), *begun(), delta("a", 3), *begun("item_b", "resp_2"))
    return gateway_over(sessions)


async def test_the_choices_of_a_request_are_found_again_in_order() -> None:
    gateway = await opened()
    for choices, responses in ((1, ("resp_1",)), (2, ("resp_1", "resp_2"))):
        found = await resume(gateway, LOCAL_PRINCIPAL, SEEN, choices=choices)
        assert found.responses == responses and found.after == 1
        found.cursor.close()


@pytest.mark.parametrize(
    "wrong",
    [
        SEEN._replace(epoch=Epoch("other")),
        SEEN._replace(offset=99),
        SEEN._replace(response=ResponseId("resp_9")),
    ],
)
async def test_a_place_that_is_not_there_is_refused(wrong: EventId) -> None:
    gateway = await opened()
    with pytest.raises(BadInput) as caught:
        await resume(gateway, LOCAL_PRINCIPAL, wrong)
    assert caught.value.param == "last_event_id" and len(gateway.feeds) == 0


async def test_more_choices_than_there_are_is_refused() -> None:
    with pytest.raises(BadInput):
        await resume(await opened(), LOCAL_PRINCIPAL, SEEN, choices=3)
