"""`./sessile load` as a process: against the whole server, and against servers that are none."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.support.doors.openai_stand_in import StandIn, piece, plain, stand_in, stream
from tests.support.doors.server_process import ROOT, ServerProcess


async def started(*words: str, **environment: str) -> asyncio.subprocess.Process:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SESSILE_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "app.py"), "load", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**variables, **environment},
    )


async def run(*words: str, **environment: str) -> tuple[int | None, str, str]:
    """(status, stdout, stderr)"""
    process = await started(*words, **environment)
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), errors.decode()


def figures(out: str) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(out)
    return read


async def test_a_load_on_our_server_is_measured_and_judged(tmp_path: Path) -> None:
    page = tmp_path / "load.html"
    fast = ("--sim-tokens-per-s", "5000", "--sim-answer-tokens", "8")
    with ServerProcess("--engine", "sim", *fast) as server:
        address = f"127.0.0.1:{server.port}"
        common = ("--requests", "12", "--mix", "short,long,turns", "--long-tokens", "300", "--json")
        trace = tmp_path / "trace.jsonl"
        trace.write_text('{"turns": [{"prompt": "Hello"}, {"prompt_tokens": 9, "think_s": 0.01}]}\n')
        closed = await run("--url", address, "--users", "4", "--trace", str(trace), "--report", str(page), *common)
        opened = await run("--url", f"ws://{address}/v1/ws", "--rate", "50", *common, "--ttft-ms", "0.001")
    status, out, errors = closed
    assert status == 0, out + errors
    whole = figures(out)["summaries"][-1]
    assert whole["kind"] == "all" and whole["requests"] >= 12 and whole["failed"] == 0
    assert whole["goodput"] == 1 and whole["tokens"] > 12 and whole["ttft_ms"]["p50"] > 0
    assert "<svg" in page.read_text()
    status, out, errors = opened
    assert status == 1, errors  # nobody's first token comes within a microsecond
    assert figures(out)["passed"] is False and figures(out)["summaries"][-1]["good"] == 0


async def test_servers_that_are_none_end_it_with_a_sentence() -> None:
    refused = plain('{"error": {"message": "No such key."}}', status="401 Unauthorized")
    async with stand_in(usual=plain("<html>", media_type="text/html")) as page:
        status, out, errors = await run("--url", page.url)
        assert status == 2 and not out
        sentence = "the answer is not one of OpenAI's API (text/html); is the address right?"
        assert errors == f"sessile: url: {page.url}: {sentence}\n"
    async with stand_in(models=refused) as closed:
        status, _, errors = await run("--url", closed.url)
        assert status == 2 and "HTTP 401: No such key.; the key is what SESSILE_API_KEY" in errors
    async with stand_in() as other:
        status, _, errors = await run("--url", other.url, "--model", "planted")
        assert status == 2 and "has no 'planted', but stand-in" in errors
    status, _, errors = await run("--url", "chat.example")
    assert status == 2 and "HOST:PORT" in errors
    status, _, errors = await run("--url", "http://chat.example", SESSILE_API_KEY="sk-x")
    assert status == 2 and "a key goes over https only" in errors


async def test_errors_are_counted_by_their_sentence_and_cost_goodput() -> None:
    away = plain("{}", status="429 Too Many", fields="Retry-After: 0\r\n")
    hello = stream(piece("Hi"), piece(finish="stop"))
    answers = [hello, away, stream(piece("a"), cut=True), plain('{"detail": "broken"}', status="500 Oops")]
    async with stand_in(*answers, usual=hello) as server:
        words = ("--users", "1", "--requests", "8", "--mix", "short", "--json")
        status, out, errors = await run("--url", server.url, *words)
    assert status == 1
    read = figures(out)
    assert read["errors"] == {
        "HTTP 429 (Retry-After: 0 s)": 1,
        "the stream was cut after 1 pieces": 1,
        "HTTP 500: broken": 1,
    }
    whole = read["summaries"][-1]
    assert (whole["requests"], whole["good"], whole["failed"], whole["turned_away"]) == (8, 5, 2, 1)
    assert "note: the server sends no usage" in errors


async def test_a_watch_shows_its_figures_to_prometheus_until_it_is_stopped() -> None:
    async with stand_in() as server:
        process = await started("--url", server.url, "--watch", "--rate", "50", "--mix", "short", "--metrics-port", "0")
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
        address = line.removeprefix("Metrics are ready: ").strip()
        await reached(server, 8)
        async with httpx.AsyncClient(timeout=60) as http:
            text = (await http.get(address)).text
        process.send_signal(signal.SIGINT)
        out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert 'sessile_load_requests_total{kind="short",outcome="good"}' in text
    assert process.returncode == 0, errors.decode()
    assert "goodput 100.0%" in out.decode()


async def reached(server: StandIn, requests: int) -> None:
    enough = asyncio.Event()
    server.on_request = lambda: enough.set() if len(server.requests) >= requests else None
    await asyncio.wait_for(enough.wait(), 60)


async def test_a_server_without_a_list_of_models_takes_a_named_one() -> None:
    async with stand_in(models=plain("{}", status="404 Not Found")) as server:
        assert (await run("--url", server.url, "--model", "mine", "--requests", "1", "--users", "1"))[0] == 0
        status, _, errors = await run("--url", server.url)
        assert status == 2 and "HTTP 404" in errors
