"""Answers that need no engine: how soon a hit's first byte comes.

    python -m bench.openai.result_cache --hits 200

A whole server on llama.cpp is asked one question over a real socket until it is kept, then again: what is measured is
from the request's first byte to the stream's first chunk, on one connection that stays open, beside a request of the
same size that is computed. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from bench.support import Option, report, run_bench, spread
from testbed.server_process import ServerProcess

ENGINES: Final = {
    "llama": ("--engine", "llama", "--threads", "1", "--slots", "2", "--titles", "off"),
    "sim": ("--engine", "sim", "--sim-answer-tokens", "24", "--titles", "off"),
}
FIRST_BYTE_MS: Final = 3.0
TRIES_MAX: Final = 20
LIMITS: Final = "[default]\nresult_cache_s = 3600\n"


async def first_bytes(hits: int, engine: str) -> dict[str, Any]:
    """Times of hits through `/v1/chat/completions`, streamed, and of runs beside them."""
    with tempfile.TemporaryDirectory() as folder:
        limits = Path(folder) / "limits.toml"
        limits.write_text(LIMITS)
        with ServerProcess(*ENGINES[engine], "--limits", str(limits)) as server:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
                model = (await http.get("/v1/models")).json()["data"][0]["id"]
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.closing(writer):
                door = Door(reader, writer)
                hit, whole, miss, wrong = [], [], [], 0
                body = {"model": model, "temperature": 0, "max_tokens": 256, "stop": ["."], "stream": True}
                question = [
                    {"role": "system", "content": "Answer in one short sentence."},
                    {"role": "user", "content": "What is the capital of France?"},
                ]
                for _ in range(TRIES_MAX):  # it is kept a moment after its end
                    kept = await door.stream({**body, "messages": question})
                    if kept.outcome == "hit":
                        break
                else:
                    raise RuntimeError("the answer is not kept: did it end by itself?")
                for number in range(hits):
                    given = await door.stream({**body, "messages": question})
                    hit.append(given.first_s)
                    whole.append(given.text_s)
                    wrong += (given.text, given.outcome) != (kept.text, "hit")
                    if number < 10:
                        short = {**body, "max_tokens": 4, "seed": number, "messages": question}
                        miss.append((await door.stream(short)).first_s)
    return {
        "hits": hits,
        "not the same answer, or no hit (bar 0)": wrong,
        **spread(f"hit, first byte {{}}, ms (bar {FIRST_BYTE_MS})", hit, "p50 p95 max", times=1000),
        **spread("hit, its text, {}, ms", whole, "p50 p95", times=1000),
        **spread("computed, first byte {}, ms", miss, "p50", times=1000),
    }


class Streamed(NamedTuple):
    text: str
    outcome: str  # its `x-cache`
    first_s: float  # until its first chunk
    text_s: float  # until the first of its text


class Door:
    """One connection that stays open, without a client library: what is measured is the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def stream(self, body: dict[str, Any]) -> Streamed:
        content = msgspec.json.encode(body)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(content)}\r\n"
        begun_at = time.perf_counter()
        self._writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + content)
        headers = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not headers.startswith(b"http/1.1 200"):
            raise RuntimeError((headers + await self._reader.read(1 << 16)).decode())
        rest, first_s, text_s = b"", 0.0, 0.0
        while not rest.endswith(b"0\r\n\r\n"):
            piece = await self._reader.read(1 << 16)
            if not piece:
                raise RuntimeError("the server hung up")
            rest += piece
            first_s = first_s or (time.perf_counter() - begun_at if b"data: {" in rest else 0.0)
            text_s = text_s or (time.perf_counter() - begun_at if b'"content":"' in rest else 0.0)
        lines = (msgspec.json.decode(line[6:]) for line in rest.splitlines() if line.startswith(b"data: {"))
        text = "".join(choice["delta"].get("content") or "" for line in lines for choice in line["choices"])
        outcome = next(line[9:] for line in headers.split(b"\r\n") if line.startswith(b"x-cache: "))
        return Streamed(text, outcome.decode(), first_s, text_s)


async def main(given: argparse.Namespace) -> bool:
    started = time.monotonic()
    figures = await first_bytes(given.hits, given.engine)
    report("result_cache", {**figures, "seconds": time.monotonic() - started})
    late = figures[f"hit, first byte p95, ms (bar {FIRST_BYTE_MS})"] > FIRST_BYTE_MS
    return not figures["not the same answer, or no hit (bar 0)"] and not late


if __name__ == "__main__":
    run_bench(main, __doc__, hits=200, engine=Option("llama", choices=tuple(ENGINES)))
