"""A prompt is computed in pieces or whole, beside what is there already, until its run begins."""

from __future__ import annotations

import array
from pathlib import Path
from typing import Any, cast

import pytest

from inference.http_client import HttpClient
from inference.llama.completion import LlamaCompletion
from inference.llama.prefill import SlotPrefill, SlotRun
from inference.llama.scheduling import EngineRun, Scheduler
from inference.llama.schema_probe import SchemaProbe
from inference.llama.shown_prompts import ShownPrompt, Speller
from inference.llama.slot_kv import SlotKv
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import SlotTable
from inference.step_budget import StepBudget
from inference.tokens import as_tokens
from sessions.model.errors import BadInput, Unavailable
from sessions.model.generation import Chunk, Finish
from tests.support.engines.kv import key, make_tiers

PROMPT = as_tokens(range(100))


class Completions:
    """Runs that are over at once: which prompts were sent with which parameters, and what was there before."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, dict[str, Any]]] = []
        self.first_text = "{"

    def __call__(
        self,
        guide: object,
        slot_number: int,
        prompt: array.array[int],
        resident: int,
        cached_max: int,
        shown: object,
    ) -> FinishedCompletion:
        return FinishedCompletion(self, len(prompt), resident)


class FinishedCompletion:
    finished = True
    prefill_s = 0.01

    def __init__(self, owner: Completions, length: int, resident: int) -> None:
        self._owner = owner
        self._length = length
        self._chunks: list[Chunk] = []
        self.cached_tokens = resident
        self.evaluated_tokens = length - resident

    async def open(self, parameters: dict[str, Any]) -> None:
        self._owner.sent.append((self._length, self.cached_tokens, parameters))
        if parameters["n_predict"]:
            self._chunks = [Chunk((5,), self._owner.first_text)]

    async def next(self) -> Chunk | Finish:
        return self._chunks.pop() if self._chunks else Finish("length", self._length, self.cached_tokens)

    def close(self) -> None:
        return


class Ground:
    def __init__(self, folder: Path) -> None:
        self.table = SlotTable(1)
        self.scheduler = Scheduler(self.table, 4)
        self.completions = Completions()
        tiers = make_tiers(folder, 1 << 20)
        usage = SlotUsage(self.table, tiers.catalog, 8)
        self.slot_kv = SlotKv(cast(HttpClient, None), tiers, usage, worth_tokens=1_000)
        self.closed = False

    def prefill(self, step_tokens: int = 1000) -> SlotPrefill:
        budget = StepBudget(3_600.0, step_tokens)
        budget.measured(1_000, 1.0)
        return SlotPrefill(
            self.scheduler,
            cast(Any, self.completions),
            self.slot_kv,
            SchemaProbe(90),
            turn_opening_tokens=2,
            budget=budget,
            check=self._check,
        )

    def _check(self) -> None:
        if self.closed:
            raise Unavailable("engine_unavailable", "closed")

    async def begin(
        self, prefill: SlotPrefill, shown: ShownPrompt | None = None, **parameters: Any
    ) -> LlamaCompletion | None:
        run = EngineRun(key("a"), PROMPT, shown=shown)
        slot_run = SlotRun(await self.scheduler.acquire(run), run)
        try:
            return await prefill.begin(slot_run, PROMPT, 0, {"n_predict": 8, **parameters})
        finally:
            slot_run.slot.tokens = PROMPT
            self.scheduler.leave(run)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


async def test_a_prompt_goes_in_pieces_and_its_last_one_with_the_run(ground: Ground) -> None:
    await ground.begin(ground.prefill(30))
    sent = [(length, resident, parameters["n_predict"]) for length, resident, parameters in ground.completions.sent]
    assert sent == [(30, 0, 0), (60, 30, 0), (90, 60, 0), (100, 90, 8)]


@pytest.mark.parametrize(
    ("first", "pieces"),
    [(0, [(100, 0)]), (20, [(100, 0)]), (30, [(30, 0), (100, 30)]), (75, [(30, 0), (60, 30), (100, 60)])],
)
async def test_what_begins_with_an_image_is_one_piece(
    ground: Ground, first: int, pieces: list[tuple[int, int]]
) -> None:
    shown = ShownPrompt(PROMPT, first, "", (), cast(Speller, None))
    await ground.begin(ground.prefill(30), shown)
    assert [(length, resident) for length, resident, _ in ground.completions.sent] == pieces


async def test_a_new_schema_is_tried_for_one_token_first_and_a_bad_one_refused(ground: Ground) -> None:
    prefill = ground.prefill()
    await ground.begin(prefill, json_schema={"type": "object"})
    assert [parameters["n_predict"] for _, _, parameters in ground.completions.sent] == [1, 8]
    await ground.begin(prefill, json_schema={"type": "object"})
    assert len(ground.completions.sent) == 3, "a good one is remembered"
    ground.completions.first_text = "Z"
    with pytest.raises(BadInput) as refused:
        await ground.begin(prefill, json_schema={"type": "bogus"})
    assert refused.value.code == "invalid_schema"


async def test_measuring_teaches_what_computing_takes(ground: Ground) -> None:
    cost = ground.slot_kv.tiers.cost
    assert cost.prefill_s(0, 100) == float("inf")
    await ground.prefill().measure()
    assert 0 < cost.prefill_s(0, 100) < 1
