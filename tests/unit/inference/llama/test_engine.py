"""The llama.cpp engine before its start, and turns beside hints, over a server that computes when a test says so; what
it does with a real one is in `tests/contract`."""

from __future__ import annotations

import array
import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference.kv import staging as staging_module
from inference.kv.tiers import Tiers
from inference.llama.eager_save import EagerSaver
from inference.llama.engine import LlamaEngine, _staged, _Started
from inference.llama.options import LlamaOptions
from inference.llama.prefill import SlotPrefill
from inference.llama.schema_probe import SchemaProbe
from inference.llama.slot_kv import SlotKv
from inference.llama.slot_usage import SlotUsage
from inference.step_budget import StepBudget
from inference.tokens import as_tokens
from sessions.model.errors import Unavailable
from sessions.model.generation import BACKGROUND_PRIORITY, Chunk, EngineInfo, Finish
from testbed.engine_client import ask, key
from tests.support.engines.kv import make_tiers
from tests.support.virtual_time import settled, virtual

PROMPT = as_tokens(range(100))
LATER = as_tokens(range(110))
EDITED = as_tokens([*range(10), *range(500, 600)])


def test_llama_without_memory_for_it_keeps_kv_in_its_slots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "MEMORY_BACKED", tmp_path / "shm")
    wanted = LlamaOptions(model_path=tmp_path / "m.gguf", disk_folder=tmp_path / "kv", redis_url="redis://r")
    options, folder = _staged(wanted)
    folder.close()
    assert (options.host_bytes_max, options.disk_folder, options.redis_url) == (0, None, "")


class Computed:
    """A prompt that is computed once `goes_on` is set, and then answered by one token where one is requested."""

    ids_guessed = drafted_tokens = accepted_tokens = 0
    prefill_s = 0.0

    def __init__(self, prompt: array.array[int], resident: int) -> None:
        self.prompt = prompt
        self.cached_tokens = self.reusable_tokens = resident
        self.evaluated_tokens = len(prompt) - resident
        self.emitted_tokens = 0
        self.goes_on = asyncio.Event()
        self.finished = False
        self._left = 0

    @property
    def held(self) -> array.array[int]:
        return self.prompt

    async def open(self, parameters: dict[str, Any]) -> None:
        self._left = min(1, parameters["n_predict"])

    async def next(self) -> Chunk | Finish:
        await self.goes_on.wait()
        if self._left:
            self._left = 0
            self.emitted_tokens = 1
            return Chunk((5,), "x", cached_tokens=self.cached_tokens)
        self.finished = True
        return Finish("length", len(self.prompt), self.cached_tokens)

    def close(self) -> None:
        self.goes_on.set()


class Ground:
    """An engine of two slots over such a server."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[Computed] = []
        self.slots: list[int] = []
        self.engine = engine = LlamaEngine(LlamaOptions(model_path=folder / "m.gguf", slots=2, context_window=1024))
        self.tiers: Tiers = make_tiers(folder, 1 << 20)
        usage = SlotUsage(engine._table, self.tiers.catalog, 8)
        slot_kv = SlotKv(cast(Any, None), self.tiers, usage, worth_tokens=10_000)
        budget = StepBudget(3_600.0, 1_000)
        budget.measured(1_000, 1.0)
        prefill = SlotPrefill(
            engine._scheduler,
            cast(Any, self._completion),
            slot_kv,
            SchemaProbe(90),
            turn_opening_tokens=2,
            budget=budget,
            check=engine._check_alive,
        )
        nothing: Any = None
        engine._started = _Started(
            info=EngineInfo(
                model="m",
                build="b",
                model_fingerprint="f",
                context_window=1024,
                slots=2,
                sampling=frozenset(),
            ),
            tokenizer=nothing,
            vocabulary=cast(Any, SimpleNamespace(size=1000, fragments=(), special_ids=())),
            staging=nothing,
            server=nothing,
            http=nothing,
            slot_kv=slot_kv,
            usage=usage,
            eager_saver=EagerSaver(engine._table, slot_kv, num_waiting=lambda: 0, save_idle_s=60.0),
            prefill=prefill,
            quota=self.tiers.quota,
            guides=nothing,
            scorer=nothing,
            shower=None,
        )
        engine._unavailable = None

    def _completion(
        self, guide: object, slot_number: int, prompt: array.array[int], resident: int, cached_max: int, shown: object
    ) -> Computed:
        self.sent.append(Computed(prompt, resident))
        self.slots.append(slot_number)
        return self.sent[-1]

    @property
    def computed(self) -> list[tuple[int, int]]:
        """How many tokens each prompt that was sent has, and how many of them were there."""
        return [(len(each.prompt), each.cached_tokens) for each in self.sent]

    async def held(self, name: str) -> None:
        """Gives a session a slot."""
        turn = asyncio.ensure_future(ask(self.engine, key(name), PROMPT, max_tokens=1))
        await settled()
        self.sent[-1].goes_on.set()
        await turn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@virtual
async def test_a_turn_waits_for_the_hint_ahead_of_it_and_computes_the_rest(folder: Path) -> None:
    ground = Ground(folder)
    hint = asyncio.ensure_future(ground.engine.warm(key("a"), PROMPT))
    await settled()
    assert not await ground.engine.warm(key("a"), PROMPT), "one is under way"
    turn = asyncio.ensure_future(ask(ground.engine, key("a"), LATER, max_tokens=1))
    await settled()
    assert ground.computed == [(100, 0)]
    ground.sent[0].goes_on.set()
    assert await hint
    await settled()
    ground.sent[1].goes_on.set()
    await turn
    assert ground.computed == [(100, 0), (110, 100)] and ground.slots[0] == ground.slots[1]


@virtual
async def test_a_turn_of_another_branch_waits_for_no_hint(folder: Path) -> None:
    """A message is edited while the conversation as it was is brought up."""
    ground = Ground(folder)
    hint = asyncio.ensure_future(ground.engine.warm(key("a"), PROMPT))
    await settled()
    turn = asyncio.ensure_future(ask(ground.engine, key("a"), EDITED, max_tokens=1))
    await settled()
    assert len(ground.sent) == 2, "it waits for what is of no use to it"
    ground.sent[1].goes_on.set()
    await turn
    assert not hint.done()
    ground.sent[0].goes_on.set()
    assert await hint


@virtual
async def test_a_hint_that_is_cancelled_keeps_no_turn_waiting(folder: Path) -> None:
    ground = Ground(folder)
    hint = asyncio.ensure_future(ground.engine.warm(key("a"), PROMPT))
    await settled()
    turn = asyncio.ensure_future(ask(ground.engine, key("a"), PROMPT, max_tokens=1))
    await settled()
    hint.cancel()
    await settled()
    ground.sent[-1].goes_on.set()
    await turn
    assert ground.engine.stats().running == 0


@virtual
async def test_a_turn_behind_a_hint_is_refused_where_the_engine_is_closed_meanwhile(folder: Path) -> None:
    ground = Ground(folder)
    hint = asyncio.ensure_future(ground.engine.warm(key("a"), PROMPT))
    await settled()
    turn = asyncio.ensure_future(ask(ground.engine, key("a"), PROMPT, max_tokens=1))
    await settled()
    ground.engine._unavailable = Unavailable("engine_unavailable", "The engine has been closed.")
    ground.sent[0].goes_on.set()
    await hint
    with pytest.raises(Unavailable):
        await turn
    assert not await ground.engine.warm(key("b"), PROMPT)
    assert len(ground.sent) == 1 and ground.engine._table.num_busy == 0


@virtual
async def test_a_hint_takes_no_slot_of_who_waits_for_tools_and_is_expected_sooner(folder: Path) -> None:
    ground = Ground(folder)
    for name in "ab":
        await ground.held(name)
        ground.engine.tools_called(key(name), ["look_up"])
    assert not await ground.engine.warm(key("c"), PROMPT)
    assert len(ground.sent) == 2 and ground.engine.held_sessions() == {key("a"), key("b")}
    own = asyncio.ensure_future(ground.engine.warm(key("a"), LATER))
    await settled()
    ground.sent[-1].goes_on.set()
    assert await own, "it takes nobody's"


@virtual
async def test_a_summary_of_a_session_is_no_return_of_its_user(folder: Path) -> None:
    ground = Ground(folder)
    await ground.held("a")
    ground.engine.tools_called(key("a"), ["look_up"])
    summary = asyncio.ensure_future(ask(ground.engine, key("a"), LATER, max_tokens=1, priority=BACKGROUND_PRIORITY))
    await settled()
    ground.sent[-1].goes_on.set()
    await summary
    assert ground.tiers.returns.waits_for_tools(key("a"))
    await ground.held("a")
    assert not ground.tiers.returns.waits_for_tools(key("a"))
