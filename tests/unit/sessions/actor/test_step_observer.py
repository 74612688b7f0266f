"""What a step leaves in metrics, logs and the audit log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from sessions.actor.step_observer import observed_step
from sessions.machine import event_writer, inputs_and_effects
from sessions.metrics import Metrics
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.types import LOCAL_PRINCIPAL, Tool, UnixMs, Usage
from sessions.model.verdicts import Finding, Verdict
from tests.support.machine.machine_fixture import SESSION, Ground

FLAG = Finding(category="c/keyword", action="flag", start=0, end=3, text="gun", review=True)


class Observed:
    def __init__(self) -> None:
        self.ground = Ground()
        self.ground.create()
        self.metrics = Metrics()

    def step(self, input: inputs_and_effects.Input) -> inputs_and_effects.Step:
        world: Any = SimpleNamespace(metrics=self.metrics)
        return observed_step(input, self.ground.machine, world, structlog.get_logger(), UnixMs(2_000_000))

    def command(self, command: cm.ActorCommand, **more: Any) -> inputs_and_effects.Step:
        return self.step(inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command), **more))

    def message(self) -> cm.MessageCreate:
        return cm.MessageCreate(id=self.ground.name(), session=SESSION, content="gun")


@pytest.fixture
def observed() -> Observed:
    return Observed()


def test_a_refused_message_is_audited_with_its_code(observed: Observed) -> None:
    step = observed.command(observed.message(), findings=(FLAG,), refused=BadInput("content_filter", "no"))
    assert [row.detail["outcome"] for row in step.audit] == ["content_filter"]


def test_what_an_appeal_repeats_is_counted_once(observed: Observed) -> None:
    appeal = cm.ReviewAppeal(id=observed.ground.name(), session=SESSION, content="gun", note="")
    step = observed.command(appeal, findings=(FLAG,), blocked=True)
    assert observed.metrics.verdicts.total == 0 and step.audit == []


def test_a_retraction_and_its_finding_are_audited_as_the_servers(observed: Observed) -> None:
    ground = observed.ground
    response_id = ground.say().response_id
    assert response_id is not None
    verdict = Verdict(action="retract", start=0, end=1, category="c")
    output = inputs_and_effects.Output(
        response_id, ground.running[response_id], (event_writer.Text("gun"),), b"", "", (FLAG,), verdict
    )
    step = observed.step(output)
    assert [(row.action, row.by) for row in step.audit] == [("verdict", None), ("content.retracted", None)]
    assert {row.response for row in step.audit} == {response_id}
    assert observed.metrics.verdicts.values == {("output", "flag", "c"): 1}


def test_a_call_of_a_server_tool_is_audited_and_what_it_says_like_a_users_words(observed: Observed) -> None:
    observed.command(
        cm.SessionUpdate(id=observed.ground.name(), session=SESSION, tools=(Tool(name="book", server=True),))
    )
    machine, now = observed.ground.machine, UnixMs(2_000_001)
    answer = observed.command(observed.message()).answer
    assert isinstance(answer, cm.Ok) and answer.response_id is not None
    response_id = answer.response_id
    pieces = (event_writer.CallBegin("book"), event_writer.CallArguments("{}"))
    machine.step(inputs_and_effects.Output(response_id, 1, pieces, b""), now)
    machine.step(inputs_and_effects.GenerationFinished(response_id, 1, "stop", Usage(1, 1)), now)
    (call_id,) = machine.state.awaiting[response_id].missing
    observed.step(inputs_and_effects.ToolApprovalNeeded(response_id, call_id))
    decided = observed.command(cm.ToolApprove(id=observed.ground.name(), session=SESSION, call_id=call_id))
    assert [(row.action, row.by, row.detail["approved"]) for row in decided.audit] == [
        ("tool.decided", LOCAL_PRINCIPAL, True)
    ]
    sent = observed.step(inputs_and_effects.ToolStarting(response_id, call_id, "call_x"))
    (row,) = sent.audit
    assert (row.action, row.response, row.detail["name"]) == ("tool.called", response_id, "book")
    said = observed.step(
        inputs_and_effects.ToolAnswered(response_id=response_id, call_id=call_id, output="gun", findings=(FLAG,))
    )
    assert [row.action for row in said.audit] == ["verdict"]
    assert observed.metrics.verdicts.values == {("input", "flag", "c"): 1}
