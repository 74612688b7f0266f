"""Limits at the boundary: 50 clients at once over 3 gateways, counted together on a real Valkey.

    python -m bench.limits.counting --seconds 40

Bar: never above the limit by more than one request's reservation; headers true. Half of the clients come back when they
are told to, half at once. One gateway is killed (SIGKILL) half way: what its turns reserved must be settled.

Verdict, over every window [a, b] between any two moments of the run:

    requests granted         <= a minute's worth + what a minute refills · (b - a) + 1
    tokens really used       <= likewise + one reservation
    turns under way at once  <= the limit

Headers: a 429 comes only where the limit that it names was used up by its own headers; what is said to remain, and no
more, can be had afterwards; and one who waits as long as it was told is let in.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from bench.support import report, run_bench
from tests.support.chaos.cluster import chaos_cluster
from tests.support.percentiles import percentile

REQUESTS, TOKENS, TURNS = 400, 20_000, 24
ANSWER = 48
RESERVED = ANSWER + 40  # of one request: its answer and its short input
LIMITS = f"""
[default]
requests_per_minute = {REQUESTS}
tokens_per_minute = {TOKENS}
concurrent_turns = {TURNS}
"""
FLAGS = ("--engine", "sim", "--sim-answer-tokens", "0", "--slots", "64", "--sim-tokens-per-s", "100")


class LimitedAnswer(NamedTuple):
    began: float
    headers_at: float
    ended: float
    status: int
    headers: httpx.Headers
    tokens: int  # used
    error: dict[str, Any]


async def post_chat(http: httpx.AsyncClient, url: str, text: str, answer_tokens: int = 8) -> LimitedAnswer:
    """One streamed turn. Raises httpx.HTTPError where the gateway is gone."""
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": answer_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        headers_at = time.monotonic()
        if answer.status_code != 200:
            error = msgspec.json.decode(await answer.aread()).get("error", {})
            return LimitedAnswer(began, headers_at, time.monotonic(), answer.status_code, answer.headers, 0, error)
        tokens = 0
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                usage = msgspec.json.decode(line[6:]).get("usage")
                tokens = usage["total_tokens"] if usage else tokens
        return LimitedAnswer(began, headers_at, time.monotonic(), 200, answer.headers, tokens, {})


def over(events: list[tuple[float, float, int]], ceiling: int) -> float:
    """By how much some window exceeds a bucket of `ceiling` a minute. An event (from, to, amount) happened somewhere
    between: it counts for a window only where that holds the whole of it."""
    events = sorted(events, key=lambda event: event[1])
    worst = float("-inf")
    for first in events:
        taken = 0
        for _, until, amount in (event for event in events if event[0] >= first[0]):
            taken += amount
            worst = max(worst, taken - ceiling * (1 + (until - first[0]) / 60))
    return worst


def at_once(asked: list[LimitedAnswer]) -> int:
    """Turns that were surely under way together: from their first byte to their last."""
    moves = sorted([(one.headers_at, 1) for one in asked] + [(one.ended, -1) for one in asked])
    most = now = 0
    for _, move in moves:
        now += move
        most = max(most, now)
    return most


async def load(urls: list[str], seconds: float, kill: Any) -> list[LimitedAnswer]:
    """50 clients for so long; `kill` is awaited half way."""
    asked: list[LimitedAnswer] = []
    until = time.monotonic() + seconds

    async def client(number: int, http: httpx.AsyncClient) -> None:
        turn = 0
        while time.monotonic() < until:
            url = urls[(number + turn) % len(urls)]
            turn += 1
            try:
                one = await post_chat(http, url, f"client {number} turn {turn}", ANSWER)
            except httpx.HTTPError:
                continue  # the gateway that was killed; the next one takes it
            asked.append(one)
            if one.status == 429 and number % 2:
                await asyncio.sleep(int(one.headers["retry-after-ms"]) / 1000)
            elif one.status != 200:
                await asyncio.sleep(0.05)

    async def killer() -> None:
        await asyncio.sleep(seconds / 2)
        await kill()

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=200)) as http:
        await asyncio.gather(killer(), *(client(number, http) for number in range(50)))
    return asked


async def truth(urls: list[str]) -> tuple[list[str], dict[str, Any]]:
    """What the headers say, held against what happens, when nobody else asks."""
    wrong: list[str] = []
    async with httpx.AsyncClient(timeout=60) as http:
        await asyncio.sleep(20)  # a few hundred requests come back meanwhile
        first = await post_chat(http, urls[0], "how much is left")
        left, at = int(first.headers["x-ratelimit-remaining-requests"]), first.headers_at
        tokens = int(first.headers["x-ratelimit-remaining-tokens"])
        burst: list[LimitedAnswer] = []
        while not burst or burst[-1].status == 200:
            batch = await asyncio.gather(
                *(post_chat(http, urls[n % len(urls)], f"burst {n}") for n in range(TURNS - 4))
            )
            burst += sorted(batch, key=lambda one: one.status)
            if any(one.status not in (200, 429) for one in batch) or len(burst) > 3 * REQUESTS:
                break
        granted = [one for one in burst if one.status == 200]
        took = max(one.headers_at for one in burst) - at
        refill = took * REQUESTS / 60
        if not left - 2 <= len(granted) <= left + refill + 2:
            wrong.append(f"{left} requests were said to remain, {len(granted)} were had in {took:.1f} s")
        spent = sum(one.tokens for one in granted)
        refused = [one for one in burst if one.status == 429]
        if any(one.error.get("param") != "requests_per_minute" for one in refused):
            wrong.append(f"refused for {refused[0].error.get('param')}, with {tokens} tokens left and {spent} used")
        last = max(refused, key=lambda one: one.headers_at) if refused else None
        if last is not None:
            waited = int(last.headers["retry-after-ms"]) / 1000
            await asyncio.sleep(max(0.0, last.headers_at + waited - time.monotonic()) + 0.02)
            if (after := await post_chat(http, urls[0], "as told")).status != 200:
                wrong.append(f"who waited {waited} s, as told, was refused: {after.error}")
    return wrong, {"said_to_remain": left, "had_after_that": len(granted), "refill_meanwhile": refill}


def headers_wrong(asked: list[LimitedAnswer]) -> list[str]:
    found = []
    for one in asked:
        h = one.headers
        left, tokens = int(h["x-ratelimit-remaining-requests"]), int(h["x-ratelimit-remaining-tokens"])
        if not (0 <= left <= REQUESTS and 0 <= tokens <= TOKENS):
            found.append(f"remaining {left}, {tokens}")
        if one.status == 429:
            what = one.error.get("param")
            if (what == "requests_per_minute" and left) or (what == "tokens_per_minute" and tokens >= RESERVED):
                found.append(f"refused for {what} with {left} requests and {tokens} tokens left")
            if int(h["retry-after-ms"]) < 1 or int(h["retry-after"]) < 1:
                found.append("a 429 without a time")
    return found


async def main(given: argparse.Namespace) -> bool:
    file = Path(tempfile.mkdtemp(prefix="sessile-limits-")) / "limits.toml"
    file.write_text(LIMITS)
    names = ("r1", "r2", "g1", "g2", "g3")
    async with chaos_cluster(*FLAGS, "--limits", str(file), names=names) as cluster:
        urls = [url.replace("ws", "http", 1).removesuffix("/v1/ws") for url in cluster.urls]
        asked = await load(urls, given.seconds, cluster.members["g3"].kill)
        wrong, held = await truth(urls[:2])
        client = cluster.valkey.client()
        left_over = sum(client.zcard(places) for places in client.scan_iter("*limits*:o:*"))
        client.close()
    file.unlink()
    file.parent.rmdir()
    granted = [one for one in asked if one.status == 200]
    refused = [one for one in asked if one.status == 429]
    strange = [one for one in asked if one.status not in (200, 429)]
    requests_over = over([(one.began, one.headers_at, 1) for one in granted], REQUESTS)
    tokens_over = over([(one.began, one.ended, one.tokens) for one in granted], TOKENS)
    turns = at_once(granted)
    wrong += headers_wrong(granted + refused)
    met = (
        requests_over <= 1
        and tokens_over <= RESERVED
        and turns <= TURNS
        and not wrong
        and not strange
        and not left_over
    )
    report(
        "limits",
        {
            "seconds": given.seconds,
            "granted": len(granted),
            "refused": len(refused),
            "refused_by": {
                what: sum(one.error.get("param") == what for one in refused)
                for what in ("requests_per_minute", "tokens_per_minute", "concurrent_turns")
            },
            "other_answers": [(one.status, one.error.get("code")) for one in strange][:5],
            "requests_above_the_limit": requests_over,
            "tokens_above_the_limit": tokens_over,
            "turns_at_once": turns,
            "places_left_over": left_over,
            **held,
            "headers_wrong": wrong[:5],
            "refusal_ms_p50": percentile([(one.headers_at - one.began) * 1000 for one in refused] or [0], 0.5),
            "verdict": "met" if met else "NOT MET",
        },
    )
    return met


if __name__ == "__main__":
    run_bench(main, __doc__, seconds=40.0)
