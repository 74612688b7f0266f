"""The engine's own server, as its users run it: what our overhead is measured against.

llama-server inside a process of its own (through xllamacpp), spoken to over HTTP with plain asyncio streams: the
client must cost as little here as ours does there.

    python -m bench.peer --slots 8 --threads 1      runs it until its standard input closes
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.support import ROOT, run_bench

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PIECE_TOKENS = 64  # of a prompt in one step, as our engine does on a CPU

Posted = tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]  # with the answer's head


async def posted(host: str, port: int, path: str, body: dict[str, Any], *, http: str = "1.1") -> Posted:
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
    data = msgspec.json.encode(body)
    writer.write(
        f"POST {path} HTTP/{http}\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
        + data
    )
    return reader, writer, await reader.readuntil(b"\r\n\r\n")


class LlamaServerProcess:
    """A running llama-server. Context is `context` tokens per slot, as ours."""

    def __init__(self, *, slots: int, threads: int, context: int = 8192) -> None:
        self._flags = ["--slots", str(slots), "--threads", str(threads), "--context", str(context)]
        self._process: subprocess.Popen[str] | None = None
        self.host, self.port = "127.0.0.1", 0

    def __enter__(self) -> LlamaServerProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peer", *self._flags],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("peer at "):
                address = urlsplit(line.removeprefix("peer at ").strip())
                self.host, self.port = address.hostname or "127.0.0.1", address.port or 80
                return self
        raise RuntimeError("llama-server ended before it was ready")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def chat(self, messages: list[dict[str, str]], max_tokens: int) -> tuple[float, int]:
        """Streams one answer; returns when its first text came (monotonic seconds) and how many tokens it had."""
        body = {"messages": messages, "stream": True, "max_tokens": max_tokens, "temperature": 0.0}
        first = 0.0
        last: dict[str, Any] = {}
        async for event in self.stream("/v1/chat/completions", body):
            delta = event["choices"][0]["delta"].get("content") if event.get("choices") else None
            if delta and not first:
                first = time.monotonic()
            last = event.get("timings") or last
        return first, int(last.get("predicted_n", 0))

    async def stream(self, path: str, body: dict[str, Any]) -> Any:
        reader, writer, _ = await posted(self.host, self.port, path, body, http="1.0")
        async for line in reader:
            at = line.find(b"data: ")
            if at >= 0 and not line.startswith(b"data: [DONE]"):
                yield msgspec.json.decode(line[at + 6 :])
        writer.close()


def main(arguments: argparse.Namespace) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(arguments.model)
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.context * arguments.slots
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    params.n_batch, params.n_ubatch = PIECE_TOKENS + arguments.slots, PIECE_TOKENS
    params.cache_ram_mib = 0
    params.port = 0
    server = xllamacpp.Server(params)
    print(f"peer at {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    run_bench(main, __doc__, slots=8, threads=1, context=8192, model=MODEL)
