"""What filters, limits, prices and metrics cost many streams together: a server with all of them against one with none.

    python -m bench.everything --pairs 10

Both are `serve` on llama.cpp with one engine thread: the same model, settings and requests, OpenAI's chat completions
streamed, 32 streams that begin 0.1 s apart. `with` has a policy for messages and answers (phrases, personal data,
secrets and toxicity, `window`), limits for tenant and user, targets, prices, a port for metrics that
is read every second, and the audit log. Pairs are those of `bench.pairs`: `ours` is the server with everything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from functools import partial
from pathlib import Path

from bench.openai_overhead import ours
from bench.pairs import compared
from bench.support import report, run_bench
from tests.support.doors.server_process import ServerProcess

POLICY = """
[policies.default]
mode = "window"
[policies.default.input]
phrases = { deny = ["project nightjar"], action = "block" }
pii = { action = "redact" }
secrets = { action = "block" }
toxicity = { action = "flag", review = false }
[policies.default.output]
phrases = { deny = ["project nightjar"], action = "block" }
pii = { action = "redact" }
secrets = { action = "block" }
toxicity = { action = "flag", review = false }
"""
LIMITS = """
output_tokens = 64
[default]
requests_per_minute = 1_000_000
tokens_per_minute = 1_000_000_000
concurrent_turns = 1_000
sessions = 1_000_000
stored_bytes = 1_000_000_000_000
user.requests_per_minute = 1_000_000
user.concurrent_turns = 1_000
[targets.default]
ttft_ms = 600_000
tpot_ms = 60_000
"""
PRICES = """
currency = "USD"
[[prices]]
model = "*"
input = 0.15
output = 0.60
"""


def written(folder: Path) -> tuple[str, ...]:
    """The flags of a server with everything."""
    flags: list[str] = []
    for name, text in (("policy", POLICY), ("limits", LIMITS), ("prices", PRICES)):
        path = folder / f"{name}.toml"
        path.write_text(text)
        flags += [f"--{name}", str(path)]
    return tuple(flags)


async def scraped(port: int) -> None:
    """Reads the metrics every second, as a monitor does."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        if not (await reader.read()).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("no metrics")
        writer.close()
        await asyncio.sleep(1.0)


async def main(arguments: argparse.Namespace) -> None:
    streams = arguments.streams
    flags = ("--engine", "llama", "--threads", "1", "--slots", str(streams), "--context", "1024")
    with (
        tempfile.TemporaryDirectory(prefix="sessile-bench-") as folder,
        ServerProcess(*flags, *written(Path(folder))) as full,
        ServerProcess(*flags) as plain,
    ):
        watching = asyncio.create_task(scraped(full.port))
        sides = (partial(ours, full.port, arguments.model), partial(ours, plain.port, arguments.model))
        figures = await compared(arguments.pairs, streams, *sides, later_ms=0)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    names = {name: name.replace("ours", "with").replace("llama-server", "without") for name in figures}
    report("everything", {names[name]: value for name, value in figures.items()})


if __name__ == "__main__":
    run_bench(main, __doc__, pairs=10, streams=32, model="SmolLM2-135M-Instruct.Q4_1")
