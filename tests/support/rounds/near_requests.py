"""Requests that nearly are another's, and how often the result cache gives one the other's answer.

    python -m tests.support.rounds.near_requests --tries 100000 --seed 1

Asks the cache itself, which is all that stands between tenants: pairs of requests that differ by one thing (a tenant, a
policy, a field, where a delimiter stands), tenants whose names look alike among them; every one of a pair is kept, then
the other is looked up. An answer that another request made is a foreign hit.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from actors.results.cache import ProcessKeys, TenantResultCache
from actors.results.store import MemoryResultStore
from sessions.limits import Limits, TenantLimits
from sessions.machine.state import Open
from sessions.metrics import Metrics
from sessions.model.generation import Chunk, EngineInfo
from sessions.model.types import Principal, Sampling, SessionId, SessionKey, TenantId, Tool
from sessions.turn.ledger import PromptPlan
from sessions.turn.result_cache import request_name
from tests.support.machine.generation_fixture import open_response

BASES: Final = 500  # requests that come again, so that there are hits
PARTS: Final = (
    "acme",
    "acme ",
    "Acme",
    "acme/",
    "acme\0",
    "\u0430cme",
    "acme|b",
    "a",
    "b",
    "ab",
    "",
    '"',
    "\\",
    "{}",
    "\n",
)


class NearRequest(msgspec.Struct, frozen=True):
    """All that an answer may depend on."""

    tenant: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    model: str = "m"
    build: str = "b"
    fingerprint: str = "f"
    tokenizer: str = "t"
    policy: str = "p"
    adapter: str = ""
    tools: tuple[Tool, ...] = ()

    def name(self, open_: Open) -> tuple[bytes, PromptPlan]:
        engine = EngineInfo(
            model=self.model,
            build=self.build,
            model_fingerprint=self.fingerprint,
            context_window=4096,
            slots=1,
            sampling=frozenset(),
        )
        plan = PromptPlan(array("I", self.prompt), array("I"), 0, self.max_tokens, 0, None)
        name = request_name(
            msgspec.structs.replace(open_, sampling=self.sampling),
            plan,
            engine,
            tokenizer=self.tokenizer,
            policy=self.policy,
            tools=self.tools,
            adapter=self.adapter,
        )
        return name, plan


def pairs(rng: random.Random) -> Iterator[tuple[NearRequest, NearRequest]]:
    """Requests that are nearly the same: one thing differs, or a delimiter stands elsewhere."""
    words = ("model", "build", "fingerprint", "tokenizer", "policy", "adapter", "tenant")
    bases = [
        msgspec.structs.replace(
            NearRequest("", tuple(rng.choices(range(3), k=rng.randrange(1, 6))), rng.randrange(1, 4), Sampling()),
            sampling=Sampling(temperature=0, seed=rng.choice((None, 1, 2))),
            **{name: rng.choice(PARTS) for name in words},
        )
        for _ in range(BASES)
    ]
    while True:
        one = rng.choice(bases)
        kind = rng.randrange(5)
        if kind == 0:  # what two fields say, cut elsewhere
            left, right = rng.sample(words, 2)
            joined = getattr(one, left) + getattr(one, right)
            cut = rng.randrange(len(joined) + 1)
            other = msgspec.structs.replace(one, **{left: joined[:cut], right: joined[cut:]})
        elif kind == 1:
            name = rng.choice(words)
            other = msgspec.structs.replace(one, **{name: rng.choice(PARTS)})
        elif kind == 2:
            other = msgspec.structs.replace(one, prompt=(*one.prompt, rng.randrange(3)), max_tokens=one.max_tokens)
        elif kind == 3:
            stop = rng.choice(("", "a", "b", ("a", "b"), ("ab",))) or None
            other = msgspec.structs.replace(one, sampling=msgspec.structs.replace(one.sampling, stop=stop, top_k=1))
        else:
            tools = (Tool(name=rng.choice("ab") or "a", description=rng.choice(PARTS)),)
            one = msgspec.structs.replace(one, tools=tools)
            other = msgspec.structs.replace(one, tools=(*tools, *tools)[: rng.choice((0, 2))])
        if one != other:
            yield one, other


async def foreign_hits(tries: int, seed: int) -> dict[str, Any]:
    """Keeps each of `tries` requests' answers where none is found, and counts those found that another made."""

    class Impersonal:
        async def is_personal(self, principal: Principal, text: str) -> bool:
            return False

    limits = Limits(default=TenantLimits(result_cache_s=3600, result_cache_bytes=1 << 30))
    cache = TenantResultCache(
        MemoryResultStore(1 << 30, time.monotonic), ProcessKeys(), lambda: limits, Impersonal(), Metrics()
    )
    kept: dict[str, NearRequest] = {}
    here = set[NearRequest]()
    foreign = lost = found = 0
    open_, made = open_response(temperature=0), pairs(random.Random(seed))
    for number in range(0, tries, 2):
        for each in next(made):
            name, plan = each.name(open_)
            key = SessionKey(TenantId(each.tenant), SessionId(f"s{number}"))
            lookup = await cache.find(key, name, plan)
            if lookup.answer is not None:
                found += 1
                foreign += kept[lookup.answer.text] != each
                continue
            lost += each in here
            here.add(each)
            label = f"answer {number} {len(kept)}"
            kept[label] = each
            lookup.record(Chunk((number,), label))
            lookup.close()
            await cache.store(lookup, Principal(tenant=key.tenant, key_id="k"), [label])
    return {"tries": tries, "found": found, "own answers not found": lost, "foreign hits (bar 0)": foreign}


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    counts = asyncio.run(foreign_hits(chosen.tries, chosen.seed))
    print(counts)
    return not counts["foreign hits (bar 0)"] and not counts["own answers not found"] and counts["found"] > 0


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
