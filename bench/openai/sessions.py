"""Sessions without asking: unmodified clients that resend their history, and which sessions they land in.

    python -m bench.openai.sessions --rounds 1000 --seed 1     two users of one key, identical prompts (simulated)
    python -m bench.openai.sessions --turns 10                 ten turns of one client on llama.cpp: tokens reused

A round interleaves the turns of two users at random, some of them at the same moment: no session may ever hold a turn
of both. In the second part every turn must land in the one session; what could be reused is the prompt and the answer
of the turn before. Then the client asks its last question again, edits the one in the middle, and resends all with the
answer in the middle cut in half, emptied, and replaced: all must be branches of that session and cost what
stands behind the first difference, within `SPARE_TOKENS`. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import openai

from bench.support import report, run_bench
from tests.support.doors.server_process import ServerProcess
from tests.support.rounds.openai_users import ResendingClient, interleaved

LLAMA = ("--engine", "llama", "--threads", "1", "--slots", "2")
SPARE_TOKENS = 4  # what ends an answer and begins the next question's message


async def resending(turns: int) -> dict[str, Any]:
    """One client for `turns` turns on llama.cpp."""
    with ServerProcess(*LLAMA) as server:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
            model = (await client.models.list()).data[0].id
            one = ResendingClient(client, model, "Tell me about rivers.", max_tokens=48, temperature=0)
            for number in range(turns):
                await one.turn(f"And what about number {number} of the things that you have just named?")
            middle, last = turns // 2, turns - 1
            whole = one.usage[middle].prompt_tokens
            branches = {
                "asked again": (one.branch(last, None), one.usage[last - 1].total_tokens),
                "edited": (one.branch(middle, "Name three lakes instead."), one.usage[middle - 1].total_tokens),
                "answer cut": (one.branch(turns, None), whole + one.usage[middle].completion_tokens // 2),
                "answer emptied": (one.branch(turns, None), whole),
                "answer replaced": (one.branch(turns, None), whole),
            }
            for name, text in (("cut", None), ("emptied", ""), ("replaced", "As you say.")):
                messages = branches[f"answer {name}"][0].messages
                answer = messages[2 * middle + 1]
                half = answer["content"][: len(answer["content"]) // 2]
                messages[2 * middle + 1] = {**answer, "content": half if text is None else text}
            behind = {}
            for name, (branch, fork) in branches.items():
                await branch.turn("")
                usage = branch.usage[0]
                behind[f"{name}: sessions in all (bar 1)"] = len({*one.sessions, *branch.sessions})
                behind[f"{name}: prompt tokens"] = usage.prompt_tokens
                behind[f"{name}: behind the difference"] = usage.prompt_tokens - fork
                behind[f"{name}: computed"] = usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0)
    before = one.usage[:-1]
    reusable = [usage.total_tokens for usage in before]
    cached = [usage.prompt_tokens_details.cached_tokens or 0 for usage in one.usage[1:]]
    return {
        "turns": turns,
        "sessions (bar 1)": len(set(one.sessions)),
        "context at the end, tokens": one.usage[-1].total_tokens,
        "reusable tokens": sum(reusable),
        "reused of them (bar 0.99)": sum(cached) / sum(reusable),
        "worst turn": min(have / could for have, could in zip(cached, reusable, strict=True)),
        **behind,
    }


def missed(figures: dict[str, Any]) -> bool:
    """Whether a bar of the second part is missed."""
    return (
        figures["sessions (bar 1)"] != 1
        or figures["reused of them (bar 0.99)"] < 0.99
        or any(
            figures[f"{name}: sessions in all (bar 1)"] != 1
            or figures[f"{name}: computed"] > figures[f"{name}: behind the difference"] + SPARE_TOKENS
            for name in ("asked again", "edited", "answer cut", "answer emptied", "answer replaced")
        )
    )


async def main(given: argparse.Namespace) -> bool:
    started = time.monotonic()
    if given.turns:
        figures = await resending(given.turns)
        wrong = missed(figures)
    else:
        figures = await interleaved(given.rounds, given.seed)
        wrong = bool(figures["shared"])
    report("openai_sessions", {**figures, "seconds": time.monotonic() - started})
    return not wrong


if __name__ == "__main__":
    run_bench(main, __doc__, rounds=1000, seed=1, turns=0)
