"""The owner of a session is killed (kill -9), or stopped for a while, in mid-answer, again and again: real processes.

    python -m bench.cluster.kill --rounds 25 --seed 1 [--how kill|sleep] [--engine llama|sim]

Each round: a new session with a prompt of another length; at a random moment of its answer the owner is killed, or gets
SIGSTOP and, 10 s later, SIGCONT. Two devices record every frame; what they were sent is held against the journal.
Measured is the time from the signal to the next piece of text at the device that asked.

What the survivor had to prefill again is measured in the same round, on the same survivor with the same processes
running: the time to the first token of a session that nobody has seen, a token, times the tokens that the usage row of
the broken answer counts as computed again. It contains a command's way there and back, a few ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator

import msgspec

from bench.support import Option, filler, is_faultless, report, run_bench, spread
from testbed.chaos.cluster import SIMULATED, ChaosCluster, chaos_cluster, key_of
from testbed.chaos.device import Device, device
from testbed.wire_client import TERMINAL

FLAGS = {
    "llama": ("--engine", "llama", "--threads", "1", "--slots", "2"),
    "sim": SIMULATED,
}
SLEEP_S = 10.0
EARLY = 2  # pieces of text before the earliest kill


class Round(msgspec.Struct):
    moved_s: float  # until the new owner's first record
    next_token_s: float
    prefill_s: float
    context_tokens: int
    findings: list[str]
    moves: list[str]

    @property
    def beyond_s(self) -> float:
        return self.next_token_s - self.prefill_s

    @property
    def line(self) -> str:
        return (
            f"moved after {self.moved_s:.3f} s, next token after {self.next_token_s:.3f} s, prefill of "
            f"{self.context_tokens} tokens {self.prefill_s:.3f} s, {self.moves}, {len(self.findings)} findings"
        )


async def one_round(
    cluster: ChaosCluster, speaker: Device, reader: Device, rng: random.Random, *, how: str, tokens: int, number: int
) -> Round:
    words = rng.randint(40, 400)
    session = await speaker.create()
    await reader.read(session)
    cursor = speaker.cursors[session]
    prompt = f"Continue this as a long story: {filler(words, seed=number)}"
    response = await speaker.say(session, prompt, tokens=tokens)
    await speaker.grows(session, rng.randint(EARLY, 20))
    await asyncio.sleep(rng.random() * 0.05)
    owner = await cluster.owner(session)
    at = time.monotonic()
    if how == "kill":
        await owner.kill()
    else:
        owner.signal(signal.SIGSTOP)
    # What was on its way still arrives; the first text of the new owner stands behind the move.
    await speaker.until(lambda: bool(cursor.moves) and cursor.deltas[-1].at >= cursor.moves[0][0])
    moved_at = cursor.moves[0][0]
    next_at = next(delta.at for delta in cursor.deltas if delta.at >= moved_at)
    if how == "sleep":
        await asyncio.sleep(SLEEP_S - (time.monotonic() - at))
        owner.signal(signal.SIGCONT)
    await speaker.ends(session, response)
    findings = await findings_at_the_end(cluster, [speaker, reader], session)
    prefill_s, context = await measured_prefill(cluster, speaker, session, response, number)
    if how == "kill":
        await cluster.start(owner.name)
    return Round(moved_at - at, next_at - at, prefill_s, context, findings, [cause for _, cause in cursor.moves])


async def findings_at_the_end(cluster: ChaosCluster, devices: list[Device], session: str) -> list[str]:
    """What is wrong with what the devices saw of a session, once they have all of it."""
    head = await cluster.journal.head(key_of(session))
    assert head is not None
    for each in devices:
        cursor, top = each.cursors[session], head.top
        await each.until(lambda cursor=cursor, top=top: cursor.position == top)  # type: ignore[misc]
    return await cluster.findings(devices, [session])


async def measured_prefill(
    cluster: ChaosCluster, speaker: Device, session: str, response: str, number: int
) -> tuple[float, int]:
    """Seconds that the survivor takes for as many tokens as it had to prefill again, and how many those were."""
    entries = await cluster.store.usage.of_session(key_of(session))
    again = next(entry.row.recomputed_tokens for entry in entries if entry.row.response_id == response)
    control = await speaker.create()
    asked_at = time.monotonic()
    answer = await speaker.say(control, filler(max(20, again - 40), seed=10_000 + number), tokens=2)
    await speaker.ends(control, answer)
    deltas = speaker.cursors[control].deltas
    first_at = deltas[0].at if deltas else speaker.cursors[control].ended[answer]  # it may have nothing to say
    return (first_at - asked_at) * again / prefilled(speaker, control, answer), again


def prefilled(speaker: Device, session: str, response: str) -> int:
    """How many tokens of its prompt a response had to compute."""
    for frame in speaker.frames:
        event = frame.body.get("event", {})
        if event.get("type") in TERMINAL and event["response_id"] == response and frame.body["session"] == session:
            usage = event["response"]["usage"]
            return int(usage["input_tokens"]) - int(usage["input_tokens_details"]["cached_tokens"])
    raise AssertionError(f"{response} has not ended")


@contextlib.asynccontextmanager
async def devices(cluster: ChaosCluster) -> AsyncIterator[tuple[Device, Device]]:
    urls = cluster.urls
    async with device(*urls) as speaker, device(*urls[1:], *urls[:1], seed=1) as reader:
        yield speaker, reader


async def main(arguments: argparse.Namespace) -> bool:
    rng = random.Random(arguments.seed)
    done: list[Round] = []
    async with (
        chaos_cluster(*FLAGS[arguments.engine], names=("r1", "r2", "g1")) as cluster,
        devices(cluster) as (speaker, reader),
    ):
        until = time.monotonic() + arguments.seconds
        for number in range(arguments.rounds):
            if time.monotonic() > until:
                break
            seed = arguments.seed * 1_000 + number
            done.append(
                await one_round(cluster, speaker, reader, rng, how=arguments.how, tokens=arguments.tokens, number=seed)
            )
            print(f"{number}: {done[-1].line}", flush=True)
    findings = [each for one in done for each in one.findings]
    report(
        f"cluster_{arguments.how}",
        {
            "engine": arguments.engine,
            "rounds": len(done),
            "seed": arguments.seed,
            "lost, repeated or changed": len(findings),
            **spread("moved {} s", [one.moved_s for one in done], "p50 p95"),
            **spread("next token {} s", [one.next_token_s for one in done], "p50 p95 max"),
            **spread("prefill {} s", [one.prefill_s for one in done], "p50 p95"),
            **spread("beyond prefill {} s", [one.beyond_s for one in done], "p50 p95 max"),
            "beyond, each ms": [round(one.beyond_s * 1000) for one in done],
        },
    )
    return is_faultless(findings)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is ended
    run_bench(
        main,
        __doc__,
        rounds=25,
        seed=1,
        seconds=Option(3600.0, "no round begins after that"),
        how=Option("kill", choices=("kill", "sleep")),
        engine=Option("llama", choices=tuple(FLAGS)),
        tokens=60,
    )
