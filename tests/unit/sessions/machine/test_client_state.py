"""What a new device is shown of a session."""

from __future__ import annotations

from sessions.machine.client_state import client_state
from tests.support.machine.machine_fixture import Ground


def test_an_answer_that_is_being_written_is_shown_as_open_alone() -> None:
    ground = Ground()
    ground.create(title="Trip")
    response_id = ground.say("hello").response_id
    assert response_id is not None
    ground.text(response_id, "so far")
    shown = client_state(ground.state)
    assert [item.role for item in shown["items"]] == ["user"] and shown["title"] == "Trip"
    (open_,) = shown["open"]
    assert open_["response_id"] == response_id and open_["output"][0].text == "so far"
    ground.finish(response_id)
    shown = client_state(ground.state)
    assert not shown["open"] and [item.role for item in shown["items"]] == ["user", "assistant"]
