"""A conversation summarised when its window is nearly full: what that costs, how soon its next turn begins, what it
still knows.

    python -m bench.kv.compaction --sessions 1 --context 8192

The whole server on the real model, over WebSocket. A session is told facts among small talk until its window is nearly
full and it is compacted; then it goes on beyond what the window holds. Facts are requested, each on a branch of its
own, when the window is nearly full and at the end; beside it a session with the same messages whose oldest turns are
left out. Bars: of a summary's prompt at most 3% is computed; the turn behind it begins within 1.2 times the time of one
whose context is resident (p95); of the facts that were known before, 0.9 are known after it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any, NamedTuple

from bench.support import Option, report, run_bench, spread
from tests.support.doors.server_process import ServerProcess
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
ANSWER = 12


class Turn(NamedTuple):
    text: str
    ttft_s: float
    context: int  # tokens of its prompt and answer
    frames: list[dict[str, Any]]


class CompactedTalk:
    """One session, and the last item of its own line."""

    def __init__(self, wire: WireClient, session: str) -> None:
        self.wire = wire
        self.session = session
        self.head: str | None = None

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


async def fill(talk: CompactedTalk, facts: dict[str, str], until: int, words: int) -> list[Turn]:
    """Tells the facts, then talks on, until the context has so many tokens."""
    turns = [await talk.say(f"Remember: {name} owns a {thing}. {TALK * words}") for name, thing in facts.items()]
    while turns[-1].context < until:
        turns.append(await talk.say(small_talk(len(turns), words)))
    return turns


async def main(arguments: argparse.Namespace) -> bool:
    context, facts = arguments.context, dict(list(zip(PEOPLE, THINGS, strict=True))[: arguments.facts])
    room = context - 64
    flags: tuple[str, ...] = (
        "--engine",
        "llama",
        "--threads",
        str(arguments.threads),
        "--slots",
        "2",
        "--context",
        str(context),
    )
    if arguments.model:
        flags += ("--model", arguments.model)
    computed: list[float] = []
    resident: list[float] = []
    behind: list[float] = []
    interrupting: list[float] = []  # turns that break a summary off
    kept_share: list[float] = []  # of their prompts, what was resident
    known: dict[str, list[bool]] = {"before": [], "after": [], "truncated": []}
    events: list[dict[str, Any]] = []
    with ServerProcess(*flags) as server:
        for _ in range(arguments.sessions):
            async with connected(server.url) as wire:
                lines: dict[str, CompactedTalk] = {}
                for policy in ("compact", "truncate")[: 1 if arguments.alone else 2]:
                    made = await wire.create(context_policy="truncate", max_output_tokens=64)
                    talk = lines[policy] = CompactedTalk(wire, made)
                    turns = await fill(talk, facts, int(room * 0.86), arguments.words)
                    resident += [turn.ttft_s for turn in turns[-4:]]
                    if policy == "compact":
                        known["before"] += await talk.recalls(facts)
                        await talk.say("Good.")  # the newest branch is its own again
                        await wire.command("session.update", session=made, context_policy="compact")
                        await talk.say("Good.")
                        event = await talk.compacted()
                        events.append(event)
                        usage = event["usage"]
                        cached = usage["input_tokens_details"]["cached_tokens"]
                        computed.append(1 - cached / usage["input_tokens"])
                        await asyncio.sleep(event["tokens_after"] / arguments.prefill_rate + 2)
                        behind.append((await talk.say(small_talk(len(turns), arguments.words))).ttft_s)
                        await wire.command("session.update", session=made, context_policy="truncate")
                        await wire.command("session.compact", session=made, keep_turns=1)
                        await asyncio.sleep(1.0)  # the model is at it
                        turn = await talk.say(small_talk(len(turns) + 1, arguments.words))
                        interrupting.append(turn.ttft_s)
                        used = turn.frames[-1]["event"]["response"]["usage"]
                        kept_share.append(used["input_tokens_details"]["cached_tokens"] / used["input_tokens"])
                    for number in range(arguments.more):
                        await talk.say(small_talk(1_000 + number, arguments.words))
                    known["after" if policy == "compact" else "truncated"] += await talk.recalls(facts)
    shares = {name: sum(each) / len(each) for name, each in known.items() if each}
    kept = shares["after"] / shares["before"] if shares["before"] else 0.0
    ratio = percentile(behind, 0.95) / percentile(resident, 0.95)
    report(
        "compaction",
        {
            "sessions": arguments.sessions,
            "context": context,
            "summary_prompt_tokens": [each["usage"]["input_tokens"] for each in events],
            "summary_tokens": [each["usage"]["output_tokens"] for each in events],
            "tokens_before": [each["tokens_before"] for each in events],
            "tokens_after": [each["tokens_after"] for each in events],
            "computed_share_max": max(computed),
            "computed_bar": 0.03,
            **spread("resident_ttft_s_{}", resident, "p50 p95"),
            **spread("behind_ttft_s_{}", behind, "p50 p95"),
            **spread("interrupting_ttft_s_{}", interrupting, "p50 p95"),
            "interrupting_cached_share_min": min(kept_share),
            "ttft_ratio_p95": ratio,
            "ttft_bar": 1.2,
            **{f"recalled_{name}": share for name, share in shares.items()},
            "recalled_kept": kept,
            "recalled_bar": 0.9,
            "summary": events[0]["summary"]["content"][0]["text"][: arguments.show],
        },
    )
    return max(computed) <= 0.03 and ratio <= 1.2 and (kept >= 0.9 or not shares["before"])


if __name__ == "__main__":
    run_bench(
        main,
        __doc__,
        sessions=1,
        context=8192,
        model=Option("", "a GGUF file; empty: the small one of other benches"),
        threads=1,
        alone=False,  # without the session whose oldest turns are left out
        facts=Option(20, "at most 20"),
        words=Option(8, "small talk a turn, in sentences"),
        more=Option(12, "turns beyond the window"),
        prefill_rate=Option(100.0, "tokens a second: how long the new head is waited for"),
        show=400,
    )
