"""Effects of server tools, where the owner of a session dies, stands still or leaves at every place of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessions.machine.scrubbing import files_line
from tests.support.cluster.tool_effects import Fault, turn_with_tools
from tests.support.virtual_time import virtual

pytestmark = pytest.mark.slow


@virtual
async def test_a_turn_that_nothing_happens_to() -> None:
    verdict = await turn_with_tools("kill", 10_000, takes_keys=False, calls=2)
    assert not verdict.broke and verdict.problem == ""
    assert verdict.effects == {'{"n": 0}': 1, '{"n": 1}': 1} and len(verdict.outputs) == 2


@pytest.mark.parametrize("fault", ["kill", "stop", "hand_off"])
@pytest.mark.parametrize("takes_keys", [True, False])
@virtual
async def test_each_effect_happens_once_wherever_the_owner_breaks(fault: Fault, takes_keys: bool) -> None:
    broke, unknown = 0, 0
    sent_at = (await turn_with_tools(fault, 10_000, takes_keys=takes_keys)).sent_at
    for at in range(sent_at - 6, sent_at + 8):
        verdict = await turn_with_tools(fault, at, takes_keys=takes_keys)
        assert verdict.problem == "", (fault, at, verdict)
        if takes_keys:
            assert verdict.effects == {'{"n": 0}': 1}, (fault, at, verdict)
            assert verdict.outputs == ('booked {"n": 0}',), (fault, at, verdict)
        broke += verdict.broke
        unknown += any(output.startswith("outcome_unknown") for output in verdict.outputs)
    assert broke >= 10, "the fault fell into the turn"
    if not takes_keys and fault != "hand_off":
        assert unknown, "and into a call"


@pytest.mark.parametrize("fault", ["kill", "stop", "hand_off"])
@pytest.mark.parametrize("takes_keys", [True, False])
@virtual
async def test_files_of_a_call_are_stored_once_and_named_wherever_the_owner_breaks(
    fault: Fault, takes_keys: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a stale owner goes on storing beside the next one."""

    async def here(work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)

    monkeypatch.setattr(asyncio, "to_thread", here)  # virtual time waits for no thread
    whole = await turn_with_tools(fault, 10_000, takes_keys=takes_keys, folder=tmp_path)
    assert len(whole.files) == 2 and not whole.broke
    broke = torn = 0
    for at in range(whole.sent_at - 3, whole.sent_at + 12):
        verdict = await turn_with_tools(fault, at, takes_keys=takes_keys, folder=tmp_path)
        named = [file.file_id for file in verdict.files]
        assert verdict.problem == "" and sorted(named) == sorted(set(named)), (fault, at, verdict)
        assert len(verdict.stored) <= 2 and set(named) <= set(verdict.stored), (fault, at, verdict)
        if takes_keys:
            assert verdict.outputs == (files_line(verdict.files),) and len(named) == 2, (fault, at, verdict)
            assert [file.path for file in verdict.files] == ["a.txt", "b.txt"], (fault, at, verdict)
        else:
            assert len(named) == 2 or verdict.outputs[0].startswith("outcome_unknown"), (fault, at, verdict)
        broke += verdict.broke
        torn += len(verdict.stored) > len(named)
    assert broke >= 10
    if not takes_keys and fault == "kill":
        assert torn, "and between the files of a call"
