"""What every process of a simulated cluster stands in: its configuration, the stores, the network, and who counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Final, Literal

import msgspec

from actors.handoff.drain import DrainLimits
from actors.handoff.rebalance import RebalanceLimits
from actors.hosting.runtime import RuntimeLimits
from actors.maintenance.sweeps import SweepLimits
from actors.peer.links import LinkLimits
from actors.replica import ReplicaLimits
from actors.routing.router_limits import RouterLimits, SubscriptionLimits
from inference.simulated import SimulatedOptions
from sessions.actor.actor_context import ActorLimits
from sessions.model.types import CommandId
from sessions.routing.models_file import NO_POOLS, ModelPools, read_models
from tests.simulation.books import Books
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.oracle import OPTIONS
from tests.simulation.real_stores import RealStore
from tests.simulation.stores import Directory, Store, Trouble
from tests.simulation.world import World
from transport.gateway import GatewayLimits
from transport.protocol.connection import ConnectionLimits, ConnectionTiming

LEASE_S = 3.0
OTHER = "other"
MODELS = read_models(f"[models.simulated]\nquality = 1\n[models.{OTHER}]\nquality = 2\n")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    replicas: int
    gateways: int
    sessions: int
    lease_ttl_s: float
    idle_s: float
    replica: ReplicaLimits
    router: RouterLimits
    gateway: GatewayLimits
    connection: ConnectionLimits
    engine: SimulatedOptions
    mixed: bool  # the third replica has another model, that no other may take the place of

    def model_at(self, replica: str) -> str:
        return OTHER if self.mixed and replica == "r3" else self.engine.model

    @property
    def paced(self) -> bool:
        """Whether readers get events, and answers behind these, only as fast as they acknowledge."""
        return self.connection.window_events < 64 or self.connection.window_bytes < 4096


OrphanPolicy = Literal["continue", "pause", "cancel"]
ORPHAN_POLICIES: Final[tuple[OrphanPolicy, ...]] = (*("continue",) * 6, "cancel", "pause")


def configured(rng: Random) -> Config:
    """Small limits in many seeds, so that what happens at a limit happens often."""
    links = LinkLimits(
        watch_bytes=rng.choice([1024, 256 * 1024, 256 * 1024]), events_bytes=rng.choice([4096, 16 << 20, 16 << 20])
    )
    idle_s = rng.choice([0.6, 600.0, 600.0])
    runtime = RuntimeLimits(
        actors_max=rng.choice([2, 20_000, 20_000, 20_000]),
        recoveries_max=rng.choice([1, 8]),
        recovery_patience_s=3.0,
        idle_s=idle_s,
        orphan_policy=rng.choice(ORPHAN_POLICIES),
        orphan_after_s=1.0,
        actor=ActorLimits(
            tool_deadline_s=4.0,
            snapshot_events=rng.choice([4, 30, 512]),
            journal_patience_s=rng.choice([1.5, 30.0]),
            titles=rng.choice([None, lambda tenant: True]),
        ),
    )
    replicas = rng.choice([2, 2, 3])
    return Config(
        replicas=replicas,
        mixed=replicas == 3 and rng.random() < 0.3,
        gateways=rng.choice([1, 2, 2]),
        sessions=rng.choice([1, 1, 2, 3]),
        lease_ttl_s=LEASE_S,
        idle_s=idle_s,
        replica=ReplicaLimits(
            runtime=runtime,
            sweeps=SweepLimits(sweep_s=1.0, reclaim_every_s=4.0, purge_every_s=5.0),
            links=links,
            drain=DrainLimits(drain_s=rng.choice([2.0, 10.0])),
            rebalance=RebalanceLimits(look_s=0.5, load_min=rng.choice([0.1, 0.75])),
            lease_ttl_s=LEASE_S,
            renew_s=1.0,
        ),
        router=RouterLimits(lease_ttl_s=LEASE_S, links=links, watches=SubscriptionLimits(workers=3)),
        gateway=GatewayLimits(replay_records_max=rng.choice([12, 20_000, 20_000])),
        connection=ConnectionLimits(
            window_events=rng.choice([4, 64, 1024]),
            window_bytes=rng.choice([2048, 256 * 1024]),
            timing=ConnectionTiming(heartbeat_s=5.0, silence_s=8.0),
        ),
        engine=msgspec.structs.replace(OPTIONS, slots=rng.choice([1, 6, 6]), kv_tokens_max=rng.choice([2048, 262_144])),
    )


class Surroundings:
    def __init__(self, world: World, store: str = "memory") -> None:
        """`store`: the kind of the database that the journal is in."""
        self.world = world
        rng = self.rng = world.chance("cluster")
        self.config = configured(rng)
        self.books = Books(world)
        self.books.model_at = self.config.model_at
        if self.config.mixed:  # who has the other model is alone with it: a drain is enough to miss it
            world.faultless = False
            world.faults.add("models")
        self.journal_trouble, self.directory_trouble = Trouble(), Trouble()
        self.store = (
            Store(self.books, new_id=world.new_id)
            if store == "memory"
            else RealStore(self.books, store, new_id=world.new_id)
        )
        world.at_end.append(self.store.close)
        self.directory = Directory(world, self.books, self.directory_trouble)
        self.network = Network(world)
        self.network.on_frames = self.books.frames
        self.processes: list[Process] = []
        self._numbers = 0
        self._begun: list[asyncio.Task[Any]] = []

    def pools(self) -> ModelPools:
        return MODELS if self.config.mixed else NO_POOLS

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def command_id(self) -> CommandId:
        return CommandId(f"c{self.number():04d}")

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Something of the world's that is waited for before the evening."""
        task = self.world.loop.create_task(work, context=self.world.loop.world_context())
        self._begun.append(task)
        return task

    def begin_in(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = process.spawn(work)
        self._begun.append(task)
        return task
