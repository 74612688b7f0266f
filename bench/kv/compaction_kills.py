"""Long conversations under kills: their window is never exceeded, no call parts from its output, and nothing that was
taken back is in a summary or a prompt.

    python -m bench.kv.compaction_kills --sessions 1000 --turns 200

Whole replicas in one process under virtual time, from seeds. People say, edit, delete, erase, pin, undo, request
summaries and answer tools; replicas are killed at any moment, in the middle of answers and of summaries. The model
writes into each summary every word that it has read, and so gives away whatever it should not have had.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import time
from collections import Counter
from typing import Any

import msgspec

from actors.hosting.runtime import RuntimeLimits
from bench.support import Option, is_faultless, report, run_bench
from inference.simulated import SimulatedEngine
from inference.simulated.vocabulary import decode
from sessions.actor.actor_context import ActorLimits
from sessions.actor.compactor import INSTRUCTION
from sessions.machine.state import State, apply, empty
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import SessileError
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest
from sessions.model.types import ContextPolicy, FunctionCall, Message, ResponseId, TenantId, Tool
from tests.support.cluster.replicas import KEY, SESSION, Place, Reader, Replica
from tests.support.virtual_time import advance, passed, run
from transport.protocol.retraction import Scrubber

WINDOW = 6_000  # bytes are tokens
WORD = re.compile(r"w\d+x")
CALL = '<tool_call>{"name": "look", "arguments": {"of": "%s"}}</tool_call>'
LOOK = Tool(name="look", parameters={"type": "object", "properties": {"of": {"type": "string"}}})
LEASE_S = 7.0


class Judge:
    """What the model is given, looked at by somebody who knows what it must not be given."""

    def __init__(self) -> None:
        self.taken: set[str] = set()  # words of what was taken back
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.longest = 0
        self.given: dict[ResponseId, str] = {}  # answers, whoever goes on with them

    def prompt(self, request: GenerationRequest, text: str) -> None:
        self.longest = max(self.longest, len(request.prompt))
        if len(request.prompt) + request.max_tokens > WINDOW:
            self.faults.append(f"{len(request.prompt)} and {request.max_tokens} tokens")
        calls = Counter(re.findall(r'"of": ?"(w\d+x)"', text))
        outputs = Counter(re.findall(r"seen (w\d+x)", text))
        for word in calls.keys() | outputs.keys():
            if calls[word] and not outputs[word] and word not in self.taken:
                self.faults.append(f"the call of {word} without its output")
            if outputs[word] and not calls[word] and word not in self.taken:
                self.faults.append(f"the output of {word} without its call")
        left = self.taken.intersection(WORD.findall(text))
        if left:
            self.faults.append(f"a prompt has {sorted(left)[:3]}")


class TellingEngine(SimulatedEngine):
    """Answers at length; a summary of its has every word that it read."""

    def __init__(self, judge: Judge, rng: random.Random) -> None:
        super().__init__()
        self.judge = judge
        self.rng = rng

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, tool_format="hermes", context_window=WINDOW)

    def written(self, request: GenerationRequest, text: str) -> str:
        if INSTRUCTION in text:
            return " ".join(dict.fromkeys(WORD.findall(text)))
        last = WORD.findall(text)[-1:] or ["w0x"]
        if "look up" in text[-60:]:
            return CALL % str(last[0])
        times: int = self.rng.randint(1, 12)
        return "so it is, and more of it. " * times

    async def generate(self, request: GenerationRequest) -> Any:
        text = decode(request.prompt)
        if not request.emitted:
            self.judge.prompt(request, text)
        if INSTRUCTION in text:  # one that was broken off is made anew, of what is there by then
            self.judge.given.pop(request.response_id, None)
        answer = self.judge.given.setdefault(request.response_id, self.written(request, text)).encode()
        done = len(decode(request.emitted).encode())
        left = answer[done : done + request.max_tokens]
        for start in range(0, len(left), 64):
            await passed(0.02)
            part = left[start : start + 64]
            yield Chunk(tuple(part), part.decode())
        yield Finish("length" if done + len(left) < len(answer) else "stop", len(request.prompt), 0)

    async def warm(self, key: Any, prompt: Any, *, background: bool = False) -> bool:
        await passed(0.05)
        return True


class Life:
    """One session from its first turn to its last."""

    def __init__(self, seed: int, place: Place) -> None:
        self.place = place
        self.rng = random.Random(seed)
        self.judge = Judge()
        self.words = 0
        self.replicas = 0
        self.folded = empty(KEY, user=None)
        self.replica: Replica
        self.reader: Reader

    async def wake(self) -> None:
        def policy(tenant: TenantId) -> ContextPolicy:
            return "compact"

        self.replicas += 1
        engine = TellingEngine(self.judge, self.rng)
        limits = RuntimeLimits(actor=ActorLimits(context_policy=policy))
        self.replica = await self.place.replica(f"r{self.replicas}", engine=engine, limits=limits)
        self.reader = self.place.read(self.replica)

    async def kill(self) -> None:
        self.judge.counts["kills"] += 1
        self.replica.crash()
        await advance(LEASE_S)
        await self.wake()

    def word(self) -> str:
        self.words += 1
        return f"w{self.words}x"

    async def do(self, kind: Any, **fields: Any) -> cm.Ok | None:
        command = kind(id=self.place.name(), session=SESSION, **fields)
        for _ in range(8):
            try:
                return await self.replica.do(command)
            except SessileError as error:
                if not error.retryable:
                    return None
                await advance(1.0)
        return None

    async def turn(self) -> None:
        rng, said = self.rng, ""
        if rng.random() < 0.15:
            said = "look up "
        text = f"say {self.word()} " + "of this and that " * rng.randint(0, 20) + said + self.word()
        fields: dict[str, Any] = {"max_output_tokens": 400} if rng.random() < 0.5 else {}
        mine = [item for item in self.items() if isinstance(item, Message) and item.role == "user"]
        if mine and rng.random() < 0.05:
            ok = await self.do(cm.MessageEdit, item_id=rng.choice(mine[-4:]).id, content=text, **fields)
        else:
            ok = await self.do(cm.MessageCreate, content=text, **fields)
        if ok is None or ok.response_id is None:
            return
        if rng.random() < 0.08:
            await passed(rng.random() * 0.1)
            await self.kill()
        await self.ended()
        if rng.random() < 0.1:
            await passed(rng.random() * 0.4)  # a summary may be under way
            if rng.random() < 0.5:
                await self.kill()

    def state(self) -> State:
        """What the log says by now."""
        page = self.place.store.read(KEY, self.folded.top, 1_000_000, 1 << 40)
        for record in page.records if page is not None else ():
            apply(self.folded, record)
        return self.folded

    def items(self) -> list[Any]:
        return list(self.state().items.values())

    async def ended(self) -> None:
        """Waits until all is at rest; answers tools."""
        for _ in range(60):
            state = self.state()
            for waiting in list(state.awaiting.values()):
                for call_id in list(waiting.missing):
                    call = next(
                        item
                        for item in state.items.values()
                        if isinstance(item, FunctionCall) and item.call_id == call_id
                    )
                    word = "".join(WORD.findall(call.arguments)[:1])
                    await self.do(cm.ToolOutput, call_id=call_id, output=f"seen {word}")
            if not state.busy:
                return
            with contextlib.suppress(SessileError):
                await self.replica.do(cm.SessionWarm(id=self.place.name(), session=SESSION))
            await advance(1.0)

    async def meddle(self) -> None:
        rng, state = self.rng, self.state()
        choice = rng.random()
        items = [item for item in state.items.values() if isinstance(item, Message)]
        if not items or state.busy:
            return
        item = rng.choice(items)
        if choice < 0.35 and item.role == "user":
            if await self.do(cm.ItemDelete, item_id=item.id):
                self.taken(item.text)
        elif choice < 0.5 and state.made_by.get(item.id):
            await self.do(cm.ResponseErase, response_id=state.made_by[item.id])
        elif choice < 0.7:
            await self.do(cm.ItemPin, item_id=rng.choice([*state.items]), pinned=rng.random() < 0.7)
        elif choice < 0.8:
            await self.do(cm.CompactionUndo)
        else:
            await self.do(cm.SessionCompact, keep_turns=rng.randint(0, 4))
            if rng.random() < 0.5:
                await advance(rng.random())

    def taken(self, text: str) -> None:
        self.judge.counts["taken"] += 1
        elsewhere = {word for item in self.items() for word in WORD.findall(getattr(item, "text", ""))}
        called = {word for item in self.items() for word in WORD.findall(getattr(item, "arguments", ""))}
        self.judge.taken |= set(WORD.findall(text)) - elsewhere - called

    def look(self) -> None:
        """At what stands in the log: summaries in force, and what readers of it are shown."""
        records, judge = self.place.records(), self.judge
        for each in self.state().compactions.values():
            left = judge.taken.intersection(WORD.findall(each.summary.text))
            if left:
                judge.faults.append(f"a summary has {sorted(left)[:3]}")
        taken = [(record.offset, record.event) for record in records if isinstance(record.event, ev.ContentRetracted)]
        scrubber = Scrubber(taken)
        for record in records:
            shown = scrubber.scrub(record).event
            if isinstance(shown, ev.ContextCompacted):
                judge.counts["summaries"] += 1
                left = judge.taken.intersection(WORD.findall(shown.summary.text))
                if left:
                    judge.faults.append(f"the log shows {sorted(left)[:3]} at {record.offset}")
            judge.counts["voided"] += isinstance(shown, ev.ContentRetracted) and shown.category == ev.COMPACTION_VOIDED
            judge.counts["fitted"] += isinstance(shown, ev.ContextFitted)
            judge.counts["failed"] += isinstance(shown, ev.ResponseFailed)

    async def live(self, turns: int) -> None:
        await self.wake()
        await self.do(cm.SessionCreate, tools=(LOOK,))
        for _ in range(turns):
            await self.turn()
            if self.rng.random() < 0.15:
                await self.meddle()
        await self.ended()
        self.look()


async def lived(seed: int, turns: int) -> Judge:
    async with Place() as place:
        life = Life(seed, place)
        await life.live(turns)
        return life.judge


def main(arguments: argparse.Namespace) -> bool:
    faults: list[str] = []
    counts: Counter[str] = Counter()
    longest, started = 0, time.perf_counter()
    for seed in range(arguments.first, arguments.first + arguments.sessions):
        judge = run(lived(seed, arguments.turns))
        faults += [f"seed {seed}: {fault}" for fault in judge.faults]
        counts += judge.counts
        longest = max(longest, judge.longest)
    report(
        "compaction_kills",
        {
            "sessions": arguments.sessions,
            "turns": arguments.turns,
            **counts,
            "longest_prompt": longest,
            "window": WINDOW,
            "faults": len(faults),
            "faults_bar": 0,
            "seconds": time.perf_counter() - started,
        },
    )
    return is_faultless(faults)


if __name__ == "__main__":
    run_bench(main, __doc__, sessions=20, turns=200, first=Option(0, "the first seed"))
