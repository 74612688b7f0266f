"""What a whole turn in one command goes on with; all else of it is in `tests/golden/machine`."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from sessions.model import commands as cm
from tests.support.machine.machine_fixture import SESSION, Ground


@pytest.fixture
def ground() -> Ground:
    return Ground()


def turn(ground: Ground, *items: cm.NewItem, **more: Any) -> cm.TurnCreate:
    return cm.TurnCreate(id=ground.name(), session=SESSION, items=items, **more)


def asked(content: str = "hello") -> cm.NewMessage:
    return cm.NewMessage(role="user", content=content)


def test_a_response_that_stands_nowhere_is_refused_as_what_a_turn_goes_on_from(ground: Ground) -> None:
    ground.create()
    said = ground.say()
    assert said.response_id is not None
    ground.cancel(said.response_id)
    ground.state.answers[said.response_id].parent = UNSET  # as of one that never began
    ground.refused(turn(ground, asked(), after_response=said.response_id), "invalid_request")
