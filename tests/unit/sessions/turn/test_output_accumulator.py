"""What an actor takes of a generation: rolled up, in order, once; shown whole or not at all where a policy says so."""

from __future__ import annotations

import asyncio

from sessions.model.verdicts import Finding, Verdict
from sessions.turn.output_accumulator import GenerationLimits, OutputAccumulator
from sessions.turn.output_pipeline import Release
from tests.support.machine.generation_fixture import KeptInbox, open_response
from tests.support.virtual_time import passed, virtual

LIMITS = GenerationLimits(rollup_s=1.0, rollup_bytes=8)
FINDING = Finding(category="c", action="flag", start=0, end=1)


def accumulator(inbox: KeptInbox, *, whole: bool = False) -> OutputAccumulator:
    return OutputAccumulator(open_response(), 1, inbox, LIMITS, whole=whole)


def released(text: str, tail: str = "") -> Release:
    return Release(text, b"\x01\0\0\0" * len(text), tail)


@virtual
async def test_findings_go_with_what_is_taken_or_are_left_for_the_end() -> None:
    inbox = KeptInbox(busy=True)
    output = accumulator(inbox)
    output.findings.append(FINDING)
    output.accept(released("a"))
    assert output.take_last_findings() == (), "the actor is about to take them"
    taken = output.take()
    assert taken is not None and taken.findings == (FINDING,)
    output.findings.append(FINDING)
    assert output.take_last_findings() == (FINDING,) and output.findings == []


@virtual
async def test_a_whole_answer_that_is_broken_off_is_dropped() -> None:
    inbox = KeptInbox()
    output = accumulator(inbox, whole=True)
    output.accept(released("a"))
    output.flush()
    assert inbox.notified == 0 and output.take() is None


@virtual
async def test_a_retraction_waits_until_the_actor_has_taken_it() -> None:
    inbox = KeptInbox(busy=True)
    output = accumulator(inbox)
    output.accept(released("a secret"))
    verdict = Verdict(action="retract", start=2, end=8)
    retracting = asyncio.ensure_future(output.retract(verdict))
    await passed(0.1)
    assert not retracting.done()
    taken = output.take()
    assert taken is not None and taken.retracted is verdict
    await retracting
    assert output.written == b""
