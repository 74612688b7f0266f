"""Writes into a session's log that it leaves for another model, that it arrives there, and its model's name.

A session changes its model because routing decided so, within its alias, or because a turn named another one.

Functions over a `StepBuilder`. The activation that the session leaves writes the target and the reason before the
session moves. The next activation then changes the session's model, or writes that the pool was lost. Does not know who
decides (`sessions.routing.decision`).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from sessions.machine.step_builder import StepBuilder
from sessions.model import events as ev
from sessions.model.types import Json
from sessions.routing.models_file import head_model

ROUTING_NOTE: Final = "sessile.routing"  # of a response's `metadata`: its receipt in a line


def alias_of(info: ev.SessionInfo) -> str:
    """Returns the alias among whose models a session's turns are routed; "" if its model was named directly."""
    return "" if info.routing is UNSET else info.routing.alias


def head_model_of(info: ev.SessionInfo) -> str:
    """Returns the model, or alias, that the session's head names, by which placement chooses replicas."""
    return head_model(alias_of(info), info.model)


def leave_for_model(build: StepBuilder, routing: ev.SessionRouting) -> None:
    """Writes into the log, between turns, that a session goes to another model."""
    info = build.state.info
    if info is not None and not build.state.deleted and not build.state.busy:
        build.put(ev.SessionUpdated(info=msgspec.structs.replace(info, routing=routing)))


def arrive_at_model(build: StepBuilder) -> bool:
    """Gives a session the model of the replica where it is active, if it was sent there or its own model's pool was
    lost. Returns whether its model has changed."""
    info, here = build.state.info, build.config.default_model
    if info is None or info.routing is UNSET or info.model == here:
        return False
    routing = info.routing
    if not routing.alias:
        if routing.target == here:
            build.put(ev.SessionUpdated(info=msgspec.structs.replace(info, model=here, routing=UNSET)))
        return routing.target == here
    if routing.target != here:
        routing = msgspec.structs.replace(routing, why="pool_lost", tokens=0, version="", command="")
    routing = msgspec.structs.replace(routing, source=info.model, target="")
    build.put(ev.SessionUpdated(info=msgspec.structs.replace(info, model=here, routing=routing)))
    return True


def adopt_model(build: StepBuilder, name: str) -> None:
    """Changes the name of the session's model: to this replica's own model, or to an alias that includes it."""
    info = build.state.info
    assert info is not None
    here = build.config.default_model
    routing = UNSET if name == here else ev.SessionRouting(alias=name)
    build.put(ev.SessionUpdated(info=msgspec.structs.replace(info, model=here, routing=routing)))


def routing_note(receipt: dict[str, Json]) -> str:
    """Returns the receipt of a routing decision as one line, for clients that show a response's metadata."""
    moved = f" from {receipt['from']}" if "from" in receipt else ""
    cost = f", {receipt['tokens']} tokens computed anew" if receipt.get("tokens") else ""
    return f"{receipt['model']}{moved}: {receipt['why']}, score {receipt['score']}{cost}"
