"""The runner of server tools in an actor: what is checked, what passes the filters, what is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from actors.hosting.runtime import RuntimeLimits
from sessions.actor.actor_context import ActorLimits
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.types import FunctionCallOutput, ResponseId, TenantId, Tool
from sessions.ports import FilterSet
from sessions.server_tools import ReportProgress, ServerTool, ToolRequest, ToolResult
from tests.support.cluster.replicas import KEY, SESSION, Place, Reader, Replica
from tests.support.scripted import Scripted
from tests.support.virtual_time import advance, virtual

LOOK = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}}, server=True)
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sea"}}</tool_call>'


class Looks:
    """A port whose one tool answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[ToolRequest] = []
        self.result: ToolResult | Exception = ToolResult(outcome="done", output="blue")
        self.hold: asyncio.Event | None = None
        self.there = True
        self.cancelled = 0
        self.approval = False

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        return ServerTool(tool=LOOK, approval=self.approval) if self.there and name == "look" else None

    def offered(self, tenant: TenantId) -> Sequence[str]:
        return ()

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        self.asked.append(request)
        try:
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def begun(
    place: Place, looks: Looks, *scripts: str, filters: FilterSet | None = None
) -> tuple[Replica, Reader, ResponseId]:
    engine = Scripted([*scripts], {})
    limits = RuntimeLimits(actor=ActorLimits(tool_deadline_s=30.0))
    replica = await place.replica("r1", engine=engine, limits=limits, tools=looks, filters=filters)
    reader = place.read(replica)
    await replica.create(tools=(Tool(name="look", server=True),))
    answer = await replica.say("what colour is it")
    assert answer.response_id is not None
    await reader.ended(answer.response_id)
    return replica, reader, answer.response_id


def outputs(place: Place) -> list[FunctionCallOutput]:
    return [item for item in place.state().items.values() if isinstance(item, FunctionCallOutput)]


@virtual
async def test_a_tool_that_is_gone_or_breaks_costs_its_call_alone() -> None:
    async with Place() as place:
        looks = Looks()
        looks.result = RuntimeError("a bug")
        await begun(place, looks, CALL, "Sorry.")
        await advance(5.0)
        assert outputs(place)[0].output.startswith("outcome_unknown") and not place.head().open


@virtual
async def test_a_call_that_somebody_has_to_agree_to_waits_over_a_death() -> None:
    async with Place() as place:
        looks = Looks()
        looks.approval = True
        replica, _, response_id = await begun(place, looks, CALL, "It is blue.")
        await advance(5.0)
        (call_id,) = place.state().awaiting[response_id].missing
        assert looks.asked == [] and place.head().open
        replica.crash()
        await advance(7.0)
        heir = await place.replica("r2", engine=replica.engine, tools=looks)
        await heir.runtime.recover(KEY)
        await advance(1.0)
        assert looks.asked == []
        await heir.do(cm.ToolApprove(id=place.name(), session=SESSION, call_id=call_id))
        await advance(5.0)
        assert len(looks.asked) == 1 and outputs(place)[0].output == "blue" and not place.head().open
        kinds = [type(record.event) for record in place.records()]
        assert kinds.index(ev.ToolApprovalRequested) < kinds.index(ev.ToolApprovalDecided)
        assert kinds.count(ev.ToolApprovalRequested) == 1
