"""A conversation summarised when its window is nearly full: what that costs, how soon its next turn begins, what it
still knows.

    python -m bench.kv.compaction --context 8192 --cycles 3 --facts 0       what it costs, and the turns behind it
    python -m bench.kv.compaction --context 4096 --cycles 1 --threads 2 --model qwen   what is still known

The whole server on the real model, over WebSocket. A session is given facts among small talk, without answers to most
of it, until its window is nearly full and it is compacted; then more, up to where it would no longer fit. Facts are
requested, each on a branch of its own, when the window is nearly full and at the end; beside it a session with the same
messages whose oldest turns are left out. Then it is filled up again, `--cycles` times in all, and compacted again; in
the last cycle a turn comes while what prompts then begin with is prefilled, and another while a summary is written.

Bars: of a summary's prompt at most 3% is computed; the turn right behind it begins within 1.2 times the time of one
whose context is resident (p95); of the facts that were known before, 0.9 are known after it. Exits with 1 when one is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any, NamedTuple

import httpx

from bench.support import Option, report, run_bench, spread
from tests.support.doors.server_process import ROOT, ServerProcess
from tests.support.doors.wire_client import WireClient, connected, text_of
from tests.support.percentiles import percentile

PEOPLE = (
    *("Ana", "Bela", "Cem", "Dora", "Egon", "Fay", "Gil", "Hana", "Ivo", "Jule"),
    *("Kai", "Lena", "Milo", "Nora", "Otto", "Pia", "Quinn", "Rosa", "Sven", "Tara"),
)
THINGS = (
    *("violin", "canoe", "telescope", "donkey", "lantern", "typewriter", "kite", "anchor", "drum", "compass"),
    *("umbrella", "rocket", "teapot", "saddle", "mirror", "hammock", "candle", "sword", "piano", "tractor"),
)
TALK = "The road goes on along the river, past the old mill and the orchard, and the weather is fair today. "
MODELS = ROOT / ".cache/models"
REPLY = "That sounds like a quiet day."
ANSWER = 12


class Turn(NamedTuple):
    text: str
    ttft_s: float
    context: int  # tokens of its prompt and answer
    frames: list[dict[str, Any]]

    @property
    def usage(self) -> dict[str, Any]:
        return dict(self.frames[-1]["event"]["response"]["usage"])

    @property
    def computed(self) -> int:
        """Tokens of its prompt."""
        return int(self.usage["input_tokens"] - self.usage["input_tokens_details"]["cached_tokens"])


class CompactedTalk:
    """One session, and the last item of its own line."""

    def __init__(self, wire: WireClient, session: str) -> None:
        self.wire = wire
        self.session = session
        self.head: str | None = None
        self.days = 0

    async def plant(self, question: str, answer: str) -> None:
        """An exchange that no engine has a part in."""
        for role, content in (("user", question), ("assistant", answer)):
            fields = {"session": self.session, "content": content, "role": role, "parent_id": self.head}
            self.head = (await self.wire.command("message.create", respond=False, **fields))["item_id"]

    async def say(self, text: str, *, aside: bool = False) -> Turn:
        """`aside`: on a branch that is left again."""
        started = time.monotonic()
        ok = await self.wire.command(
            "message.create",
            session=self.session,
            content=text,
            parent_id=self.head,
            max_output_tokens=ANSWER,
            temperature=0.0,
        )
        frames = await self.wire.until_end(ok["response_id"])
        first = next(f["arrived"] for f in frames if f["event"]["type"] == "response.output_text.delta")
        body = frames[-1]["event"]["response"]
        if not aside:
            self.head = body["output"][-1]["id"]
        return Turn(text_of(frames), first - started, body["usage"]["total_tokens"], frames)

    async def day(self, words: int) -> Turn:
        """A turn of small talk."""
        self.days += 1
        return await self.say(small_talk(self.days, words))

    async def fill(self, until: int, words: int) -> Turn:
        """Plants small talk until the context has so many tokens, and few more."""
        before = (await self.say("Good.")).context
        turn = await self._plant_days(1, words)
        days = int((until - turn.context) / max(1, turn.context - before))
        turn = await self._plant_days(days, words)
        while before < turn.context < until:  # it does not go on where something was left out
            turn = await self._plant_days(1, words)
        return turn

    async def _plant_days(self, count: int, words: int) -> Turn:
        for _ in range(count):
            self.days += 1
            await self.plant(small_talk(self.days, words), REPLY)
        return await self.say("Good.")

    async def recalls(self, facts: dict[str, str]) -> list[bool]:
        answers = [await self.say(f"Which thing does {name} own? One word.", aside=True) for name in facts]
        return [thing in turn.text.lower() for turn, thing in zip(answers, facts.values(), strict=True)]

    async def compacted(self) -> dict[str, Any]:
        while True:
            event = (await self.wire.events.get())["event"]
            if event["type"] == "context.compacted":
                return dict(event)


def small_talk(number: int, words: int) -> str:
    return f"Day {number}. " + TALK * words


async def written(http: httpx.AsyncClient) -> int:
    """How many summaries the server has written."""
    text = (await http.get("/metrics")).text
    lines = (line for line in text.splitlines() if line.startswith('sessile_compactions_total{outcome="written"}'))
    return int(float(next(lines, "x 0").split()[-1]))


class Figures:
    """What was seen, over all sessions and cycles."""

    def __init__(self) -> None:
        self.resident: list[float] = []
        self.behind: list[float] = []
        self.behind_computed: list[int] = []
        self.resident_computed: list[int] = []
        self.prefilling: list[float] = []  # turns that come while the new head is prefilled
        self.interrupting: list[float] = []  # turns that break a summary off
        self.kept: list[float] = []  # of their prompts, what was resident
        self.events: list[dict[str, Any]] = []
        self.seconds: list[float] = []  # from the answer to the summary being in force
        self.known: dict[str, list[bool]] = {"before": [], "after": [], "truncated": []}

    def saw(self, event: dict[str, Any], seconds: float) -> None:
        self.events.append(event)
        self.seconds.append(seconds)
        self.show(compaction=len(self.events), seconds=seconds, tokens=event["tokens_before"])

    def show(self, **seen: float) -> None:
        """Writes to standard error what was seen just now: a run takes minutes."""
        print("  " + ", ".join(f"{name} {value:.3g}" for name, value in seen.items()), file=sys.stderr, flush=True)

    @property
    def computed(self) -> list[float]:
        usages = [event["usage"] for event in self.events]
        return [1 - each["input_tokens_details"]["cached_tokens"] / each["input_tokens"] for each in usages]


async def compacting(talk: CompactedTalk, figures: Figures, room: int, words: int) -> None:
    """Fills the window up, has it compacted and takes the next turn at once."""
    await talk.wire.command("session.update", session=talk.session, context_policy="truncate")
    await talk.fill(int(room * 0.86), words)
    await talk.wire.command("session.update", session=talk.session, context_policy="compact")
    await talk.say("Good.")
    begun = time.monotonic()
    figures.saw(await talk.compacted(), time.monotonic() - begun)
    turn = await talk.day(words)
    figures.behind.append(turn.ttft_s)
    figures.behind_computed.append(turn.computed)
    figures.show(behind_ttft_s=turn.ttft_s, computed=turn.computed)


async def interrupted(talk: CompactedTalk, figures: Figures, room: int, words: int, http: httpx.AsyncClient) -> None:
    """Turns that come in the middle: of the prefill behind a summary, and of a summary."""
    await talk.wire.command("session.update", session=talk.session, context_policy="truncate")
    await talk.fill(int(room * 0.86), words)
    await talk.wire.command("session.update", session=talk.session, context_policy="compact")
    before = await written(http)
    await talk.say("Good.")
    for _ in range(6_000):
        if await written(http) > before:
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)  # the model is at it
    if talk.wire.events.empty():
        turn = await talk.say("Good.")
        figures.prefilling.append(turn.ttft_s)
        figures.show(while_prefilled_ttft_s=turn.ttft_s, computed=turn.computed)
    begun = time.monotonic()
    figures.saw(await talk.compacted(), time.monotonic() - begun)
    await talk.wire.command("session.update", session=talk.session, context_policy="truncate")
    await talk.wire.command("session.compact", session=talk.session, keep_turns=1)
    await asyncio.sleep(1.0)
    turn = await talk.day(words)
    figures.interrupting.append(turn.ttft_s)
    figures.kept.append(1 - turn.computed / turn.usage["input_tokens"])


async def lived(arguments: argparse.Namespace, server: ServerProcess, figures: Figures) -> None:
    """One session, and beside it the one whose oldest turns are left out."""
    facts = dict(list(zip(PEOPLE, THINGS, strict=True))[: arguments.facts])
    room, words = arguments.context - 64, arguments.words
    async with connected(server.url) as wire, httpx.AsyncClient(base_url=server.url[:-6].replace("ws", "http")) as http:
        for policy in ("compact", "truncate")[: 1 if arguments.alone or not facts else 2]:
            talk = CompactedTalk(wire, await wire.create(context_policy="truncate", max_output_tokens=64))
            for name, thing in facts.items():
                await talk.plant(
                    f"Remember: {name} owns a {thing}. {TALK * arguments.fact_words}", "I will remember it."
                )
            turn_tokens = 4 * (25 * words + 40)
            await talk.fill(int(room * 0.86) - turn_tokens, words)
            turns = [await talk.day(words) for _ in range(4)]
            figures.resident += [turn.ttft_s for turn in turns]
            figures.resident_computed += [turn.computed for turn in turns]
            figures.show(resident_ttft_s_max=max(figures.resident), computed=turns[-1].computed)
            if policy == "compact":
                if facts:
                    figures.known["before"] += await talk.recalls(facts)
                    await talk.say("Good.")  # the newest branch is its own again
                await compacting(talk, figures, room, words)
            else:
                await talk.fill(room + turn_tokens, words)
            if facts:
                figures.known["after" if policy == "compact" else "truncated"] += await talk.recalls(facts)
                figures.show(**{name: sum(each) for name, each in figures.known.items()})
                await talk.say("Good.")
            if policy == "compact" and arguments.cycles > 1:
                for _ in range(arguments.cycles - 2):
                    await compacting(talk, figures, room, words)
                await interrupted(talk, figures, room, words, http)


async def main(arguments: argparse.Namespace) -> bool:
    flags = ["--engine", "llama", "--threads", str(arguments.threads), "--slots", "2"]
    flags += ["--context", str(arguments.context)]
    if arguments.model:
        flags += ["--model", str(next(MODELS.glob(f"*{arguments.model}*.gguf")))]
    figures, begun = Figures(), time.monotonic()
    with ServerProcess(*flags) as server:
        for _ in range(arguments.sessions):
            await lived(arguments, server, figures)
    shares = {name: sum(each) / len(each) for name, each in figures.known.items() if each}
    kept = shares["after"] / shares["before"] if shares.get("before") else None  # nothing was known: nothing is lost
    ratio = percentile(figures.behind, 0.95) / percentile(figures.resident, 0.95)
    events, computed = figures.events, max(figures.computed)
    report(
        "compaction",
        {
            "model": arguments.model,
            "sessions": arguments.sessions,
            "context": arguments.context,
            "summary_prompt_tokens": [each["usage"]["input_tokens"] for each in events],
            "summary_tokens": [each["usage"]["output_tokens"] for each in events],
            "tokens_before": [each["tokens_before"] for each in events],
            "tokens_after": [each["tokens_after"] for each in events],
            "seconds_until_in_force": figures.seconds,
            "computed_share_max": computed,
            "computed_bar": 0.03,
            **spread("resident_ttft_s_{}", figures.resident, "p50 p95"),
            **spread("behind_ttft_s_{}", figures.behind, "p50 p95"),
            "resident_computed_max": max(figures.resident_computed),
            "behind_computed_max": max(figures.behind_computed),
            **(spread("while_prefilled_ttft_s_{}", figures.prefilling, "p50 max") if figures.prefilling else {}),
            **(spread("interrupting_ttft_s_{}", figures.interrupting, "p50 max") if figures.interrupting else {}),
            **({"interrupting_cached_share_min": min(figures.kept)} if figures.kept else {}),
            "ttft_ratio_p95": ratio,
            "ttft_bar": 1.2,
            **{f"recalled_{name}": share for name, share in shares.items()},
            **({} if kept is None else {"recalled_kept": kept, "recalled_bar": 0.9}),
            "summary": events[0]["summary"]["content"][0]["text"][: arguments.show],
            "seconds": time.monotonic() - begun,
        },
    )
    return computed <= 0.03 and ratio <= 1.2 and (kept is None or kept >= 0.9)


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        sessions=1,
        context=8192,
        cycles=Option(2, "times that the window is filled up"),
        model=Option("", "part of a name in .cache/models; empty: the small one of other benches"),
        threads=1,
        alone=False,  # without the session whose oldest turns are left out
        facts=Option(20, "at most 20; 0: nothing is recalled"),
        fact_words=Option(1, "small talk behind a fact, in sentences"),
        words=Option(8, "small talk a turn, in sentences"),
        show=400,
    )
