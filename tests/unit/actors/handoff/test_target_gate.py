"""Who may begin at a target, and who waits for whom."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from actors.handoff.target_gate import TargetGate
from tests.support.virtual_time import settled, virtual


class Visits:
    """Sessions at a gate: who is inside, until it is sent on."""

    def __init__(self, gate: TargetGate) -> None:
        self.gate = gate
        self.inside: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    def _begin(self, name: str, place: AbstractAsyncContextManager[None]) -> None:
        leave = self._leave[name] = asyncio.Event()

        async def visit() -> None:
            async with place:
                self.inside.append(name)
                try:
                    await leave.wait()
                finally:
                    self.inside.remove(name)

        self._tasks[name] = asyncio.create_task(visit())

    async def switch(self, name: str) -> None:
        self._begin(name, self.gate.switch())
        await settled()

    async def compute(self, name: str) -> None:
        self._begin(name, self.gate.compute())
        await settled()

    async def leaves(self, name: str) -> None:
        self._leave[name].set()
        await settled()

    async def gives_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await settled()


@virtual
async def test_so_many_switches_and_one_computation_but_not_both() -> None:
    visits = Visits(TargetGate(2))
    for name in ("a", "b", "c"):
        await visits.switch(name)
    await visits.compute("long")
    assert visits.inside == ["a", "b"]
    await visits.leaves("a")
    assert visits.inside == ["b", "c"]
    await visits.leaves("b")
    assert visits.inside == ["c"]
    await visits.leaves("c")
    assert visits.inside == ["long"]
    await visits.compute("longer")
    await visits.switch("d")
    assert visits.inside == ["long"]
    await visits.leaves("long")
    assert visits.inside == ["d"], "switches go first"
    await visits.leaves("d")
    assert visits.inside == ["longer"]
    await visits.leaves("longer")


@virtual
async def test_who_gives_up_holds_nobody_up() -> None:
    visits = Visits(TargetGate(1))
    await visits.switch("a")
    await visits.switch("b")
    await visits.compute("long")
    await visits.gives_up("b")
    await visits.gives_up("a")
    assert visits.inside == ["long"]
    await visits.switch("c")
    await visits.gives_up("long")
    assert visits.inside == ["c"]
    await visits.leaves("c")
