"""vLLM's process is killed (kill -9) under an answer with a long context, again and again: real processes.

    python -m bench.cluster.engine_death --contexts 4000 8000 --rounds 5             # a standby takes over
    python -m bench.cluster.engine_death --contexts 4000 8000 --neighbour            # another replica does
    python -m bench.cluster.engine_death --contexts 4000 --alone                     # it is started again

Members run in .venv-vllm, on a copy of the small model that says that its window is long enough. Each round: a new
session with so many tokens of a prompt that nobody has seen, killed at a random moment of its answer; two devices
record every frame, which is held against the journal. Bars: the next token after 1.5 s at most, 5% of the context's
tokens computed again, nothing lost, repeated or changed. (`--alone` has no bar for the time: a start takes 15 s.)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from bench.cluster.kill import devices, findings_at_the_end
from bench.engine.stretched_model import stretched_model
from bench.support import ROOT, Option, filler, is_faultless, report, run_bench, spread
from testbed.chaos.cluster import ChaosCluster, Member, chaos_cluster, key_of
from testbed.chaos.device import Device

MODEL: Final = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
PYTHON: Final = str(ROOT / ".venv-vllm" / "bin" / "python")
ROOM: Final = 1_200  # of the window, beyond the context
ENDS: Final = {"0": -100.0, "2": -100.0}  # the token ids with which the small model ends what it says
NEXT_TOKEN_S_BAR: Final = 1.5
AGAIN_BAR: Final = 0.05
LATE_S: Final = 120.0


class EngineDeath(msgspec.Struct):
    context: int
    next_token_s: float
    again: int
    findings: list[str]
    moves: list[str]

    @property
    def again_share(self) -> float:
        return self.again / self.context

    @property
    def line(self) -> str:
        return (
            f"{self.context} tokens, next token after {self.next_token_s:.3f} s, {self.again} tokens again "
            f"({self.again_share:.1%}), {self.moves}, {len(self.findings)} findings"
        )


def engine_processes(owner: Member) -> list[int]:
    """Those of vLLM below a replica."""
    assert owner.process is not None
    children = [
        int(child)
        for task in Path(f"/proc/{owner.process.pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [child for child in children if b"EngineCore" in Path(f"/proc/{child}/cmdline").read_bytes()]


def cpu_ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def logged(cluster: ChaosCluster, name: str, event: str, before: int = 0) -> None:
    """Returns when a member has logged something more often than before."""
    for _ in range(int(LATE_S * 10)):
        if cluster.said(name).count(event) > before:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} does not log {event}:\n{cluster.said(name)[-2000:]}")


async def one_round(
    cluster: ChaosCluster, speaker: Device, reader: Device, rng: random.Random, given: argparse.Namespace, tokens: int
) -> EngineDeath:
    session = await speaker.create()
    await reader.read(session)
    cursor = speaker.cursors[session]
    prompt = f"Continue this as a long story: {filler(tokens, seed=rng.randrange(1 << 20))}"
    response = await speaker.say(session, prompt, tokens=given.answer, logit_bias=ENDS)
    await speaker.grows(session, 1, LATE_S)
    owner = await cluster.owner(session)
    before = {process: cpu_ticks(process) for process in engine_processes(owner)}
    await speaker.grows(session, rng.randint(5, 30))
    busiest = max(before, key=lambda process: cpu_ticks(process) - before[process])
    back, ready = (cluster.said(owner.name).count(event) for event in ("engine_recovered", "standby_ready"))
    at = time.monotonic()
    os.kill(busiest, signal.SIGKILL)
    await speaker.until(lambda: bool(cursor.moves) and cursor.deltas[-1].at >= cursor.moves[0][0], LATE_S)
    next_at = next(delta.at for delta in cursor.deltas if delta.at >= cursor.moves[0][0])
    await speaker.ends(session, response)
    findings = await findings_at_the_end(cluster, [speaker, reader], session)
    entries = await cluster.store.usage.of_session(key_of(session))
    row = next(entry.row for entry in entries if entry.row.response_id == response)
    if given.neighbour:
        await logged(cluster, owner.name, "engine_recovered", back)
    elif not given.alone:
        await logged(cluster, owner.name, "standby_ready", ready)
    return EngineDeath(
        row.usage.input_tokens, next_at - at, row.recomputed_tokens, findings, [why for _, why in cursor.moves]
    )


async def main(given: argparse.Namespace) -> bool:
    rng = random.Random(given.seed)
    done: list[EngineDeath] = []
    with tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder:
        window = max(given.contexts) + ROOM
        model = stretched_model(MODEL, Path(folder) / "model", window=window, layers=given.layers)
        flags = ["--engine", "vllm", "--model", str(model), "--threads", "1", "--slots", "2", "--context", str(window)]
        flags += ["--vllm-args", msgspec.json.encode({"dtype": given.dtype}).decode()]
        flags += [] if given.neighbour or given.alone else ["--vllm-standby"]
        names = ("r1", "r2", "g1") if given.neighbour else ("r1", "g1")
        async with (
            chaos_cluster(*flags, names=names, python=PYTHON) as cluster,
            devices(cluster) as (speaker, reader),
        ):
            if "--vllm-standby" in flags:
                await logged(cluster, "r1", "standby_ready")
            for tokens in given.contexts:
                for _ in range(given.rounds):
                    done.append(await one_round(cluster, speaker, reader, rng, given, tokens))
                    print(done[-1].line, flush=True)
    findings = [each for one in done for each in one.findings]
    late = [] if given.alone else [one for one in done if one.next_token_s > NEXT_TOKEN_S_BAR]
    costly = [one for one in done if one.again_share > AGAIN_BAR]
    report(
        "cluster_engine_death",
        {
            "goes on at": "a neighbour" if given.neighbour else "itself" if given.alone else "a standby",
            "dtype": given.dtype,
            "layers": given.layers or "all",
            "rounds": len(done),
            "contexts": sorted({one.context for one in done}),
            "lost, repeated or changed (bar 0)": len(findings),
            **spread("next token {} s (bar 1.5)", [one.next_token_s for one in done], "p50 p95 max"),
            **spread("computed again {} (bar 0.05)", [one.again_share for one in done], "p50 max"),
            "rounds over a bar": len(late) + len(costly),
        },
    )
    return is_faultless(findings) and not late and not costly


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is ended
    run_bench(
        main,
        __doc__,
        contexts=Option([4000, 8000], "tokens of the prompts, about"),
        rounds=Option(3, "of each"),
        seed=1,
        answer=Option(120, "tokens of an answer"),
        dtype="bfloat16",
        layers=Option(0, "that the model keeps; 0: all"),
        neighbour=False,
        alone=False,
    )
