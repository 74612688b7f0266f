"""Expected return against LRU and the infinite cache, by replaying a production trace of conversations.

    python -m bench.kv.retention PATH/mooncake_conversation_trace.jsonl

The trace (Mooncake, FAST '25) has one request a line: when, how many tokens in and out, and the hashes of its prefix in
blocks of 512 tokens. A request goes on with an earlier one when it contains all of that one's whole blocks. The model
is fitted on the first half and judged on the second; every cache runs through both, so that the second begins warm.

A request's last block is rarely whole, and a block that is not whole is never a prefix of what comes later. So
the judged caches hold whole blocks only, LRU too; `lru_all_blocks` is LRU over the trace as it is written.
"""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.support import report, run_bench
from inference.kv.eviction_rank import ReturnModel, SilenceKind, silence_kind

BLOCK_TOKENS = 512
RESORT_S = 5.0
Hits = Callable[[int], None]


class TracedRequest(msgspec.Struct):
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]

    @property
    def at_s(self) -> float:
        return self.timestamp / 1000

    @property
    def whole(self) -> list[int]:
        return self.hash_ids[: self.input_length // BLOCK_TOKENS]


class Lineage:
    """Which request goes on with which, from what came before it only."""

    def __init__(self, requests: list[TracedRequest]) -> None:
        self.kinds: list[SilenceKind] = []
        self.before: list[int | None] = []
        turns: list[int] = []
        owner: dict[int, int] = {}
        for number, request in enumerate(requests):
            last, depth = None, 0
            for depth, block in enumerate(request.hash_ids, 1):
                if block not in owner:
                    depth -= 1
                    break
                last = owner[block]
            whole = len(requests[last].whole) if last is not None else 0
            if last is not None and 0 < whole <= depth:
                pace_s = request.at_s - requests[last].at_s
                turns.append(turns[last] + 1)
                self.before.append(last)
            else:
                pace_s = None
                turns.append(0)
                self.before.append(None)
            self.kinds.append(silence_kind(turns[-1], request.input_length, pace_s))
            for block in request.hash_ids:
                owner[block] = number


def fitted(requests: list[TracedRequest], lineage: Lineage, until: int) -> ReturnModel:
    model = ReturnModel()
    silent: dict[int, None] = {}
    for number in range(until):
        last = lineage.before[number]
        if last is not None and last in silent:
            model.observe(lineage.kinds[last], requests[number].at_s - requests[last].at_s, returned=True)
            del silent[last]
        silent[number] = None
    end_s = requests[until - 1].at_s
    model.fit((lineage.kinds[number], end_s - requests[number].at_s) for number in silent)
    return model


def prefix_hits(blocks: list[int], cached: object) -> int:
    for hits, block in enumerate(blocks):
        if block not in cached:  # type: ignore[operator]
            return hits
    return len(blocks)


def infinite(requests: list[TracedRequest], half: int) -> int:
    cached: set[int] = set()
    hits = 0
    for number, request in enumerate(requests):
        hits += prefix_hits(request.whole, cached) * (number >= half)
        cached.update(request.whole)
    return hits


def lru(requests: list[TracedRequest], half: int, capacity: int, *, whole: bool) -> int:
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number, request in enumerate(requests):
        blocks = request.whole if whole else request.hash_ids
        hits += prefix_hits(blocks, cached) * (number >= half)
        for block in reversed(blocks):  # a prefix is worth more than what follows it
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity:
            cached.popitem(last=False)
    return hits


def expected_return(
    requests: list[TracedRequest], lineage: Lineage, half: int, capacity: int, model: ReturnModel
) -> tuple[int, int]:
    """(hits in the second half, blocks held at most). Evicts from the ends of the sessions that rank lowest."""
    holder: dict[int, int] = {}  # block -> the request that used it last
    held: dict[int, list[int]] = {}  # request -> the blocks that are its to give
    order: list[int] = []
    position, sorted_at, hits, most = 0, -RESORT_S, 0, 0
    for number, request in enumerate(requests):
        now_s, blocks = request.at_s, request.whole
        hits += prefix_hits(blocks, holder) * (number >= half)
        for block in blocks:
            holder[block] = number
        held[number] = list(blocks)
        while len(holder) > capacity:
            if now_s - sorted_at > RESORT_S or position >= len(order):
                held = {who: own for who, own in held.items() if any(holder.get(block) == who for block in own)}
                order = sorted(
                    (who for who in held if who != number),
                    key=lambda who: model.index(lineage.kinds[who], now_s - requests[who].at_s),
                )
                position, sorted_at = 0, now_s
                if not order:
                    order = [number]
            own = held.get(order[position], [])
            while own and len(holder) > capacity:
                block = own.pop()
                if holder.get(block) == order[position]:
                    del holder[block]
            position += not own
        most = max(most, len(holder))
    return hits, most


def main(arguments: argparse.Namespace) -> None:
    with Path(arguments.trace).open("rb") as file:
        requests = [msgspec.json.decode(line, type=TracedRequest) for line in file]
    half = len(requests) // 2
    lineage = Lineage(requests)
    started = time.perf_counter()
    model = fitted(requests, lineage, half)
    fit_s = time.perf_counter() - started
    best = infinite(requests, half)
    figures: dict[str, object] = {"requests": len(requests), "fit_s": fit_s, "infinite": best}
    for capacity in arguments.blocks:
        least = lru(requests, half, capacity, whole=True)
        hits, most = expected_return(requests, lineage, half, capacity, model)
        assert most <= capacity
        figures |= {
            f"{capacity}_lru_all_blocks": lru(requests, half, capacity, whole=False),
            f"{capacity}_lru": least,
            f"{capacity}_expected_return": hits,
            f"{capacity}_gap_closed": (hits - least) / (best - least),
        }
    report("kv_retention", figures)


if __name__ == "__main__":
    run_bench(main, __doc__, "trace", blocks=[10000, 20000, 30000])
