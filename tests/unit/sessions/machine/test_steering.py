"""What a steered answer is let in with; all else of steering is in `tests/golden/machine`."""

from __future__ import annotations

import pytest

from sessions.machine.responses import KEPT_SERVICE
from sessions.model import commands as cm
from sessions.model.types import ResponseId, Tool
from tests.support.machine.machine_fixture import SESSION, Ground

TOOL = Tool(name="look_up", parameters={"type": "object"})


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.create(tools=(TOOL,))
    return made


def steer(ground: Ground, response_id: ResponseId | None, content: str = "shorter") -> cm.Ok:
    assert response_id is not None
    return ground.ok(cm.ResponseSteer(id=ground.name(), session=SESSION, response_id=response_id, content=content))


def test_it_is_let_in_with_what_it_goes_on_from(ground: Ground) -> None:
    ground.service = {"brownout": 2, "queue_position": 3, "max_output_tokens": 10}
    first = ground.say().response_id
    ground.service = None
    ok = steer(ground, first)
    assert ok.response_id is not None
    service = ground.state.open[ok.response_id].body.service
    assert isinstance(service, dict) and set(service) <= set(KEPT_SERVICE) and service["brownout"] == 2
