"""How a generation is reported to its actor, however it ends: finished, failed, cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

from sessions.machine.inputs_and_effects import GenerationFailed, GenerationFinished, GenerationStopped, Output
from sessions.metrics import Metrics
from sessions.model.errors import BadInput
from sessions.model.types import Tool
from sessions.model.verdicts import Finding, Verdict
from sessions.schemas import InlineSchemaChecker
from sessions.turn.generation_task import GenerationRun, GenerationTask
from sessions.turn.output_accumulator import GenerationLimits
from tests.support.machine.generation_fixture import GivenEngine, GivenFilters, GivenLedger, KeptInbox, open_response
from tests.support.machine.machine_fixture import KEY
from tests.support.virtual_time import settled, virtual

FINDING = Finding(category="c", action="flag", start=0, end=1)


class Flagging:
    def feed(self, text: str) -> tuple[int, Verdict]:
        return 0, Verdict(action="flag", findings=(FINDING,))

    def finish(self) -> tuple[int, Verdict]:
        return 10**6, Verdict(action="pass")


def task(
    engine: Any, inbox: KeptInbox, *, filters: Any = None, ledger: GivenLedger | None = None, **more: Any
) -> GenerationTask:
    given: Any = ledger or GivenLedger()
    return GenerationTask(
        GenerationRun(key=KEY, open_=open_response(**more), generation=1),
        given,
        engine=engine,
        schemas=InlineSchemaChecker(),
        filters=filters or GivenFilters(),
        inbox=inbox,
        limits=GenerationLimits(),
        metrics=Metrics(),
    )


@virtual
async def test_an_answer_that_is_shown_whole_is_withheld_whole() -> None:
    class Blocking(Flagging):
        def finish(self) -> tuple[int, Verdict]:
            return 0, Verdict(action="block", message="no", start=3, end=4, findings=(FINDING,))

    inbox = KeptInbox()
    await task(GivenEngine("well"), inbox, filters=GivenFilters(Blocking, whole=True)).run()
    (end,) = inbox.inputs
    assert isinstance(end, GenerationFinished) and end.refusal == "no"
    assert (end.usage.output_tokens, end.withheld_tokens) == (0, 4)


@virtual
async def test_a_schema_error_names_the_tools_that_it_was_made_of() -> None:
    look = Tool(name="look", parameters={"type": "object"})
    error = BadInput("invalid_schema", "too deep")
    for choice, named in (("required", True), ("auto", False)):
        inbox = KeptInbox()
        engine = GivenEngine([error], tool_format="hermes")
        await task(engine, inbox, ledger=GivenLedger(tools=(look,)), tool_choice=choice).run()
        (end,) = inbox.inputs
        assert isinstance(end, GenerationFailed) and ("look" in end.error.public_message) == named


@virtual
async def test_a_cancelled_one_hands_over_its_output_and_findings() -> None:
    class Stuck(GivenEngine):
        async def generate(self, request: Any) -> Any:
            yield (await anext(aiter(super().generate(request))))
            await asyncio.get_running_loop().create_future()

    for filters, last in ((GivenFilters(), Output), (GivenFilters(Flagging), GenerationStopped)):
        inbox = KeptInbox()
        running = asyncio.ensure_future(task(Stuck("well"), inbox, filters=filters).run())
        await settled()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() and isinstance(inbox.inputs[-1], last)
