"""Conversations with retrieval on llama.cpp, through the whole server: what is reused, and what retrieval costs a turn.

    python -m bench.retrieval.turns --rounds 4 --turns 10 --faults 20

Three layouts of the same conversation, turn by turn beside each other: `knowledge` (the server finds passages and keeps
them in the log in front of the message), *typed* (the same passages in the message's own words), and *system* (the
passages of this turn in the system message, as retrieval before a stateless server does it). Each has its time to the
first token and the share of reusable tokens (the prompt before and its answer) that were not computed again.

Then turns whose embedding model is dead, slow (10 s) or stalled (it takes the request and is silent), or whose index is
dead (its tables are away) or stalled (its file is locked), each beside a turn without knowledge: what the fault adds to
the first token, and whether the answer says what was left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from bench.peer import posted
from bench.retrieval.passages import sentences
from bench.support import percentile, report, run_bench, spread
from deploy.cluster import free_port
from persistence.sqlite.library import sqlite3
from testbed.server_process import ServerProcess
from testbed.wire_client import WireClient, connected

MODEL: Final = "SmolLM2-135M-Instruct.Q4_1"
SERVER: Final = ("--engine", "llama", "--threads", "1", "--slots", "4")
ANSWER_TOKENS: Final = 24
DOCUMENTS: Final = 40
FAULTS: Final = ("dead model", "slow model", "stalled model", "dead index", "stalled index")
SLOW_S: Final = 10.0
WAL_LOCKS_AT: Final = 120
WAL_LOCKS: Final = 8


class Turn(NamedTuple):
    """One answered turn. `text` is the answer's, `passages` what the server found for it."""

    first_ms: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    text: str = ""
    passages: tuple[str, ...] = ()
    skipped: dict[str, str] | None = None


async def filled_store(http: httpx.AsyncClient, rng: random.Random, **options: Any) -> str:
    """Makes a vector store with documents and waits until they are all found."""
    store = str((await http.post("/v1/vector_stores", json=options)).raise_for_status().json()["id"])
    for number in range(DOCUMENTS):
        body = {"text": " ".join(sentences(6, rng)), "filename": f"{number}.md"}
        (await http.post(f"/v1/vector_stores/{store}/files", json=body)).raise_for_status()
    async with asyncio.timeout(600):
        while (await http.get(f"/v1/vector_stores/{store}")).json()["file_counts"]["in_progress"]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return store


async def native_turn(wire: WireClient, session: str, content: str, **fields: Any) -> Turn:
    begun_at = time.monotonic()
    asked = {"session": session, "content": content, "max_output_tokens": ANSWER_TOKENS, "temperature": 0.0}
    answer = await wire.command("message.create", **asked, **fields)
    frames = await wire.until_end(answer["response_id"])
    first = next(frame["arrived"] for frame in frames if frame["event"]["type"] == "response.output_text.delta")
    response = frames[-1]["event"]["response"]
    usage = response["usage"]
    parts = [
        part["text"]
        for frame in frames
        if frame["event"]["type"] == "item.created" and isinstance(frame["event"]["item"].get("content"), list)
        for part in frame["event"]["item"]["content"]
        if part["type"] == "input_passage"
    ]
    return Turn(
        first_ms=(first - begun_at) * 1000,
        input_tokens=usage["input_tokens"],
        cached_tokens=usage["input_tokens_details"]["cached_tokens"],
        output_tokens=usage["output_tokens"],
        passages=tuple(parts),
        skipped=response.get("service", {}).get("retrieval_skipped"),
    )


async def chat_turn(port: int, messages: list[dict[str, str]]) -> Turn:
    body = {
        "model": MODEL,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0.0,
    }
    begun_at = time.monotonic()
    reader, writer, head = await posted("127.0.0.1", port, "/v1/chat/completions", body)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(head.decode() + (await reader.read()).decode())
    first, text, usage = 0.0, "", dict[str, Any]()
    async for line in reader:
        if line.startswith(b"data: {"):
            event = msgspec.json.decode(line[6:])
            delta = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if delta:
                first, text = first or time.monotonic(), text + delta
            usage = event.get("usage") or usage
    writer.close()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Turn((first - begun_at) * 1000, usage["prompt_tokens"], cached, usage["completion_tokens"], text)


def reused(turns: list[Turn]) -> tuple[int, int]:
    """Returns how many tokens of the turns behind the first were not computed, of how many that could be reused."""
    could = sum(turn.input_tokens + turn.output_tokens for turn in turns[:-1])
    return sum(turn.cached_tokens for turn in turns[1:]), could


async def layouts(port: int, http: httpx.AsyncClient, wire: WireClient, options: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(options.seed)
    store = await filled_store(http, rng, embedding_model="all-minilm-l6-v2")
    knowledge = {"vector_store_ids": [store], "results_max": 4}
    later: dict[str, list[Turn]] = {"knowledge": [], "typed": [], "system": []}
    shares = {name: [0, 0] for name in later}
    for number in range(options.rounds + 1):  # the first one warms up
        lives: dict[str, list[Turn]] = {name: [] for name in later}
        found, typed = await wire.create(), await wire.create()
        history: list[dict[str, str]] = []
        for _ in range(options.turns):
            question = f"What do you know of this: {sentences(1, rng)[0]}"
            turn = await native_turn(wire, found, question, knowledge=knowledge)
            passages = "\n\n".join(f"[{at}] {text}" for at, text in enumerate(turn.passages, 1))
            lives["knowledge"].append(turn)
            lives["typed"].append(await native_turn(wire, typed, f"{passages}\n\n{question}"))
            history.append({"role": "user", "content": question})
            system = {"role": "system", "content": f"Answer from these passages.\n\n{passages}"}
            stateless = await chat_turn(port, [system, *history])
            lives["system"].append(stateless)
            history.append({"role": "assistant", "content": stateless.text})
        for name, turns in lives.items() if number else ():
            later[name] += turns[1:]
            for at, count in enumerate(reused(turns)):
                shares[name][at] += count
    firsts = {name: percentile([turn.first_ms for turn in turns], 0.5) for name, turns in later.items()}
    return {
        **{f"reused, {name}": have / could for name, (have, could) in shares.items()},
        **{f"prompt tokens, {name}": sum(each.input_tokens for each in turns) for name, turns in later.items()},
        **{f"TTFT p50 ms, {name}": first for name, first in firsts.items()},
        "TTFT, knowledge over typed (bar 1.05)": firsts["knowledge"] / firsts["typed"],
    }


@contextlib.asynccontextmanager
async def faulty_model(port: int) -> AsyncIterator[dict[str, str]]:
    """An embedding server whose `fault` is a model's of `FAULTS` or anything else; a dead one hangs up."""
    state, closing = {"fault": ""}, asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                texts = msgspec.json.decode(await reader.readexactly(size))["input"]
                if state["fault"] == "dead model":
                    return
                if state["fault"].endswith("model"):
                    silence_s = SLOW_S if state["fault"].startswith("slow") else None
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(closing.wait(), silence_s)
                rows = [{"index": at, "embedding": [1.0, float(at), 0.5, 2.0]} for at in range(len(texts))]
                body = msgspec.json.encode({"data": rows, "usage": {"prompt_tokens": len(texts)}})
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield state
        closing.set()


@contextlib.contextmanager
def faulty_index(path: Path, fault: str) -> Iterator[None]:
    """Takes the table of chunks away, or locks the file against readers as SQLite's processes do (the bytes of its
    shared memory that hold the locks of a WAL), if `fault` is such a one."""
    with contextlib.ExitStack() as stack:
        if fault == "dead index":
            database = stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
            database.execute("ALTER TABLE chunks RENAME TO away")
            stack.callback(database.execute, "ALTER TABLE away RENAME TO chunks")
        elif fault == "stalled index":
            shared = stack.enter_context(path.with_name(f"{path.name}-shm").open("r+b"))
            fcntl.lockf(shared, fcntl.LOCK_EX, WAL_LOCKS, WAL_LOCKS_AT)
        yield


async def faults(
    http: httpx.AsyncClient, wire: WireClient, state: dict[str, str], index: Path, options: argparse.Namespace
) -> dict[str, Any]:
    rng = random.Random(options.seed)
    store = await filled_store(http, rng, embedding_model="remote")
    knowledge = {"vector_store_ids": [store], "results_max": 4}
    added: dict[str, list[float]] = {name: [] for name in FAULTS}
    untagged = 0
    for number in range(options.faults):
        for fault in FAULTS:
            state["fault"] = fault
            plain, with_fault = await wire.create(), await wire.create()
            question = f"Why zymurgy{rng.randrange(10**6)}?"  # words that no document has: nothing but the wait differs
            sides = [(plain, {}), (with_fault, {"knowledge": knowledge})]
            took = {}
            with faulty_index(index, fault):
                for session, fields in sides if number % 2 else reversed(sides):
                    took[session] = await native_turn(wire, session, question, **fields)
            untagged += not took[with_fault].skipped
            added[fault].append(took[with_fault].first_ms - took[plain].first_ms)
    return {
        "answers without a tag (bar 0)": untagged,
        **{
            key: value
            for fault in FAULTS
            for key, value in spread(f"added by a {fault}, ms, {{}} (bar 250)", added[fault], "p50 max").items()
        },
    }


async def main(options: argparse.Namespace) -> bool:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "embeddings.toml"
        url = f'url = "http://127.0.0.1:{port}"\ndimensions = 4\n'
        models.write_text(f'networks = ["127.0.0.0/8"]\npackaged = true\n\n[models.remote]\n{url}')
        with ServerProcess(*SERVER, "--embeddings", str(models)) as server:
            async with (
                faulty_model(port) as state,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as http,
                connected(server.url) as wire,
            ):
                figures = await layouts(server.port, http, wire, options)
                figures |= await faults(http, wire, state, Path(server.data) / "passages.db", options)
    report("retrieval_turns", figures)
    late = [figures[f"added by a {fault}, ms, max (bar 250)"] for fault in FAULTS]
    fast = figures["TTFT, knowledge over typed (bar 1.05)"] <= 1.05 and max(late) <= 250
    return fast and figures["reused, knowledge"] >= 0.99 and not figures["answers without a tag (bar 0)"]


if __name__ == "__main__":
    run_bench(main, __doc__, rounds=4, turns=10, faults=20, seed=1)
