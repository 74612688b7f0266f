"""Two pools, one replica each, of the models `small` and `large`; what a session's log says of who wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from inference.simulated import SimulatedEngine
from sessions.model import events as ev
from sessions.model.types import SessionKey
from sessions.routing.models_file import ModelPools, read_models
from tests.support.cluster.harness import FAST, Cluster, cluster, until

HARD = "Refactor this and explain why it is safe:\n```python\ndef take(queue):\n    return queue.pop()\n```"
EASY = "Thanks! And what should I cook tonight?"
FILE = """
default = "auto"
[models.small]
quality = 1
[models.large]
quality = 2
[aliases]
auto = ["small", "large"]
[routing]
worth_tokens = 100000
smoothing = 1.0
calm_turns = 2
[tenants.strangers]
allow = ["small"]
"""


class FileInForce:
    """A models file that a test may change."""

    def __init__(self, text: str = FILE) -> None:
        self.pools = read_models(text)

    def now(self) -> ModelPools:
        return self.pools


async def add(made: Cluster, name: str, model: str) -> None:
    options = msgspec.structs.replace(FAST, model=model, weights=len(model))
    await made.add_replica(name, SimulatedEngine(options))


@asynccontextmanager
async def pools(file: FileInForce | None = None) -> AsyncIterator[Cluster]:
    async with cluster(replicas=0, gateways=0, pools=(file or FileInForce()).now) as made:
        await add(made, "s1", "small")
        await add(made, "l1", "large")
        await made.add_gateway("g1")
        nodes = made.replicas.values()
        await until(lambda: all(len(each.replica.membership.view.members) == 2 for each in nodes))
        yield made


def events(made: Cluster, key: SessionKey) -> list[ev.AnyEvent]:
    page = made.store.read(key, 0, 100_000, 1 << 40)
    assert page is not None
    return [record.event for record in page.records]


def receipts(made: Cluster, key: SessionKey) -> list[dict[str, Any]]:
    """Returns the model and the routing receipt of each response as it began."""
    created = (each.response for each in events(made, key) if isinstance(each, ev.ResponseCreated))
    return [{"wrote": body.model, **(body.service or {}).get("routing", {})} for body in created]


async def say(made: Cluster, key: SessionKey, text: str, tokens: int = 12) -> dict[str, Any]:
    """A turn to its end; returns its receipt."""
    await made.gateways["g1"].say(key, text, tokens=tokens)
    await made.at_rest(key)
    return receipts(made, key)[-1]
