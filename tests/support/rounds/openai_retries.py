"""POSTs that are repeated under one Idempotency-Key while their connections are cut anywhere: one answer each.

A round is one request (chat or responses, streamed or whole) that is sent up to five times: cut in the middle of the
request, in the middle of the answer, or let through, sometimes two at once. Then it is sent once more and read to its
end. Every byte of a body that was ever received must be a beginning of that last one; the engine must have run once,
and the journal must hold one row of usage. Simulated engine, in this process.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final, NamedTuple

import msgspec

from inference.simulated import SimulatedOptions
from tests.support.doors.openai_server import SIMULATED, Serving, serving

ATTEMPTS_MAX: Final = 5
AT_ONCE: Final = 8
OPTIONS: Final = SimulatedOptions(step_base_s=0.001, answer_tokens_mean=16)


class Seen(NamedTuple):
    status: int  # 0: none came
    body: bytes  # what came of it, without the framing of HTTP
    whole: bool


def request_of(rng: random.Random, key: str) -> bytes:
    messages = [{"role": "user", "content": f"question {key}"}]
    body: dict[str, Any] = {"model": SIMULATED, "stream": rng.random() < 0.8}
    path = rng.choice(("/v1/chat/completions", "/v1/responses"))
    body |= {"messages": messages} if path.startswith("/v1/chat") else {"input": messages}
    if path == "/v1/responses" and rng.random() < 0.5:
        body["store"] = False
    data = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Idempotency-Key: {key}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def attempt(port: int, request: bytes, cut_request: int | None, cut_answer: int | None) -> Seen:
    """Sends a request; the connection is reset behind so many bytes of it, or of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()
    try:
        writer.write(request[:cut_request])
        if cut_request is None:
            while chunk := await reader.read(1 << 16 if cut_answer is None else max(1, cut_answer - len(received))):
                received += chunk
                if cut_answer is not None and len(received) >= cut_answer:
                    break
        else:
            await writer.drain()
    except ConnectionError:
        pass  # it ended before its end: what came is looked at all the same
    finally:
        writer.transport.abort()
    return parsed(bytes(received))


def parsed(data: bytes) -> Seen:
    """Status and body of as much of an answer as came."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return Seen(0, b"", False)
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" not in head.lower():
        (length,) = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length:" in line]
        return Seen(status, rest, len(rest) == length)
    body = b""
    while rest:
        size, separator, after = rest.partition(b"\r\n")
        if not separator:
            break
        length = int(size, 16)
        if not length:
            return Seen(status, body, True)
        body += after[:length]
        rest = after[length + 2 :]
    return Seen(status, body, False)


async def a_round(server: Serving, number: int, seed: int, counts: Counter[str]) -> list[str]:
    """What was wrong in it."""
    rng = random.Random(seed * 1_000_003 + number)
    key = f"round-{seed}-{number}"
    request = request_of(rng, key)
    port = server.server.port
    seen: list[Seen] = []
    for _ in range(rng.randrange(ATTEMPTS_MAX + 1)):
        tries = []
        for _ in range(2 if rng.random() < 0.25 else 1):
            kind = rng.choices(("request", "answer", "through"), (3, 6, 1))[0]
            counts[f"cut in the {kind}" if kind != "through" else "let through"] += 1
            tries.append(
                attempt(
                    port,
                    request,
                    rng.randrange(len(request)) if kind == "request" else None,
                    rng.randrange(1, 6000) if kind == "answer" else None,
                )
            )
        seen += await asyncio.gather(*tries)
    last = await attempt(port, request, None, None)
    problems = [] if last.status == 200 and last.whole else [f"{key}: the last answer was {last.status}"]
    for each in seen:
        if each.status not in (0, 200):
            problems.append(f"{key}: answered with {each.status} {each.body[:200]!r}")
        elif not last.body.startswith(each.body) or (each.whole and each.body != last.body):
            problems.append(f"{key}: a stream of its own: {each.body[-200:]!r}")
    return problems


async def retried(rounds: int, seed: int) -> dict[str, Any]:
    """Plays the rounds; the figures, with what was wrong under `problems`."""
    counts: Counter[str] = Counter()
    problems: list[str] = []
    numbers = iter(range(rounds))
    async with serving(OPTIONS) as server:

        async def some() -> None:
            for number in numbers:
                problems.extend(await a_round(server, number, seed, counts))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(some())
        generations, rows = len(server.engine.asked), server.usage
    if generations != rounds:
        problems.append(f"{generations} generations for {rounds} requests")
    if rows != rounds:
        problems.append(f"{rows} rows of usage for {rounds} requests")
    return {**counts, "generations": generations, "usage rows": rows, "problems": problems}
