"""Random lives of a session: every prompt that its actor's warm ledger plans, and every answer of its result cache, is
what a ledger made anew from the folded log leads to."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from actors.results.cache import ProcessKeys, TenantResultCache
from actors.results.store import MemoryResultStore
from inference.simulated import SimulatedEngine, SimulatedTokenizer
from sessions.limits import Limits, TenantLimits
from sessions.machine.state import replay
from sessions.metrics import Metrics
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import SessileError
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest
from sessions.model.journal_types import Loaded
from sessions.model.types import Principal, ResponseId, Sampling, Tokens
from sessions.ports import Tokenizer
from sessions.turn import prompt_rendering
from sessions.turn.ledger import Ledger
from tests.support.cluster.replicas import SESSION, TERMINAL, Place, Replica, text_of
from tests.support.engines.whole_tokenizer import WholeTokenizer
from tests.support.virtual_time import passed, run, settled

STEPS = 24
WINDOWS = (130, 300, 4_096)  # a few turns: prompts are cut, or summarised
SAMPLINGS = ({"temperature": 0.0}, {"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 0.9, "seed": 5})
QUESTIONS = ("where is it?", "who are you?", "and then?")


def answer_to(prompt: Tokens, sampling: Sampling) -> str:
    """Returns the answer of a model that reads every token of its prompt."""
    said = hashlib.blake2b(repr((list(prompt), sampling.temperature)).encode(), digest_size=6).hexdigest()
    return f"it is {said}."


class Reading(SimulatedEngine):
    """Writes `answer_to` its prompt, one byte a token."""

    def __init__(self, window: int, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._window = window
        self._reads = tokenizer
        self.prompts: list[tuple[ResponseId, list[int]]] = []

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        return self._reads

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, context_window=self._window)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        asked = list(request.prompt[: len(request.prompt) - len(request.emitted)])
        self.prompts.append((request.response_id, asked))
        for byte in answer_to(asked, request.sampling).encode()[len(request.emitted) :]:
            await passed(0.001)
            yield Chunk((byte,), chr(byte))
        yield Finish("stop", len(request.prompt), 0)


class Impersonal:
    async def is_personal(self, principal: Principal, text: str) -> bool:
        return False


class Life:
    """One session, whose replica may die at any moment, and the counts of what happened in all lives."""

    def __init__(
        self, place: Place, seed: int, counts: collections.Counter[str], tokenizer: Callable[[], Tokenizer]
    ) -> None:
        self.tokenizer = tokenizer
        self.place, self.chance, self.counts, self.seed = place, random.Random(seed), counts, seed
        limits = Limits(default=TenantLimits(result_cache_s=3_600))
        store = MemoryResultStore(1 << 20, lambda: 0.0)
        self.cache = TenantResultCache(store, ProcessKeys(), lambda: limits, Impersonal(), Metrics())
        self.window = self.chance.choice(WINDOWS)
        self.checked = set[ResponseId]()
        self.replica: Replica
        self.engine: Reading

    async def activate(self) -> None:
        self.engine = Reading(self.window, self.tokenizer())
        name = f"r{len(self.place.replicas)}"
        self.replica = await self.place.replica(name, engine=self.engine, results=self.cache)

    async def live(self) -> None:
        await self.activate()
        policy = self.chance.choice(("off", "truncate", "compact"))
        with contextlib.suppress(SessileError):
            await self.replica.create(instructions="be brief", context_policy=policy)
        for _ in range(STEPS):
            with contextlib.suppress(SessileError):
                await self.step()
            await settled()
            await self.check()

    async def step(self) -> None:
        chance, place, state = self.chance, self.place, self.place.state()
        name, item = place.name(), chance.choice(list(state.items) or [None])
        kind = chance.choice(("say",) * 6 + ("again",) * 3 + ("edit", "delete", "erase", "pin", "unpin", "compact"))
        kind = chance.choice((kind, kind, kind, kind, kind, kind, "undo", "instruct", "crash"))
        sampling = chance.choice(SAMPLINGS)
        command: cm.ActorCommand
        match kind:
            case "again" if item is not None:
                command = cm.ResponseCreate(id=name, session=SESSION, parent_id=item, **sampling)  # type: ignore[arg-type]
            case "edit" if item is not None:
                content = chance.choice(QUESTIONS)
                command = cm.MessageEdit(id=name, session=SESSION, item_id=item, content=content, **sampling)  # type: ignore[arg-type]
            case "delete" if item is not None:
                command = cm.ItemDelete(id=name, session=SESSION, item_id=item)
            case "erase" if state.answers:
                command = cm.ResponseErase(id=name, session=SESSION, response_id=chance.choice(list(state.answers)))
            case "pin" | "unpin" if item is not None:
                command = cm.ItemPin(id=name, session=SESSION, item_id=item, pinned=kind == "pin")
            case "compact":
                command = cm.SessionCompact(id=name, session=SESSION, keep_turns=chance.choice((0, 1, 2)))
            case "undo":
                command = cm.CompactionUndo(id=name, session=SESSION)
            case "instruct":
                command = cm.SessionUpdate(id=name, session=SESSION, instructions=chance.choice(("be brief", "sing")))
            case _:
                parent = {"parent_id": chance.choice((None, item))} if chance.random() < 0.4 else {}
                content = chance.choice(QUESTIONS)
                command = cm.MessageCreate(id=name, session=SESSION, content=content, **parent, **sampling)  # type: ignore[arg-type]
        answer = await self.replica.do(command)
        self.counts[kind] += 1
        if kind == "crash" and answer.response_id is not None:
            await passed(chance.choice((0.0, 0.003, 0.2)))
            self.replica.crash()
            await passed(10.0)  # until its lease has ended
            await self.activate()
            await self.replica.do(cm.SessionWarm(id=place.name(), session=SESSION))
        while self.place.state().open:
            await passed(0.05)
        if kind == "compact":
            await passed(1.0)

    async def check(self) -> None:
        """Every response that has ended since the last look."""
        records = self.place.records()
        bodies = {each.event.response.id: each.event.response for each in records if isinstance(each.event, TERMINAL)}
        for index, record in enumerate(records):
            event = record.event
            if not isinstance(event, ev.ResponseCreated) or event.response_id in self.checked:
                continue
            self.checked.add(event.response_id)
            state = replay(Loaded(self.place.head(), None, tuple(records[: index + 1]), (), True))
            open_ = state.open[event.response_id]
            why = f"seed {self.seed}, {event.response_id}"
            body, runs = bodies[event.response_id], [each for each in self.engine.prompts if each[0] == open_.id]
            try:
                prompt = (await Ledger(state, self.tokenizer(), self.engine.info).plan(open_)).prompt
            except SessileError:
                assert not runs and body.status == "failed", why
                continue
            assert all(asked == list(prompt) for _, asked in runs), why
            if body.status == "completed":
                assert text_of(records, open_.id) == answer_to(prompt, open_.sampling), why
                self.counts[str((body.service or {}).get("cache"))] += 1
            self.counts["cuts"] += any(isinstance(each.event, ev.ContextFitted) for each in records[index:])
        self.counts["summaries"] += any(isinstance(each.event, ev.ContextCompacted) for each in records)


async def live(seed: int, tokenizer: Callable[[], Tokenizer]) -> collections.Counter[str]:
    counts = collections.Counter[str]()
    async with Place() as place:
        await Life(place, seed, counts, tokenizer).live()
    return counts


@pytest.mark.parametrize("tokenizer", [SimulatedTokenizer, WholeTokenizer])
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 512), marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
)
def test_prompts_and_cached_answers_are_those_of_a_ledger_made_anew(
    seeds: range, tokenizer: Callable[[], Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_rendering, "JOINED_PIECES_MIN", 2)
    counts = sum((run(live(seed, tokenizer)) for seed in seeds), collections.Counter[str]())
    assert all(counts[each] for each in ("hit", "miss", "cuts", "summaries", "delete", "pin", "edit", "crash")), counts
