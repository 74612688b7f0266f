"""The decisions about a session's model so far, as a fold of its log; the next decision depends on them.

Pure. `sessions.machine.model_routing` writes the events, `sessions.actor.model_router` reads the result.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sessions.model import events as ev

ROUTING: Final = "routing"  # of a response's `service`: which model was chosen, why, and what that cost


class RoutedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The routing of a session so far, by its log. `level` is the smoothed score of its turns, None if none was routed;
    `calm` is how many easy turns came in a row. `switched`: its model has changed since the last response. `displaced`:
    a lost pool or a brownout took its model away."""

    level: float | None = None
    calm: int = 0
    switched: bool = False
    displaced: bool = False


def after_response(routed: RoutedTurns | None, body: ev.ResponseBody) -> RoutedTurns | None:
    receipt = body.service.get(ROUTING) if body.service else None
    if not isinstance(receipt, dict):
        return routed
    before, why = routed or RoutedTurns(), receipt.get("why")
    displaced = why in ("pool_lost", "brownout") or (before.displaced and why in ("steady", "full", "not_worth_it"))
    level, calm = receipt.get("level"), receipt.get("calm")
    return RoutedTurns(
        level=float(level) if isinstance(level, int | float) else None,
        calm=calm if isinstance(calm, int) else 0,
        displaced=displaced,
    )


def after_update(routed: RoutedTurns | None, before: ev.SessionInfo | None, info: ev.SessionInfo) -> RoutedTurns | None:
    if before is None or before.model == info.model:
        return routed
    return msgspec.structs.replace(routed or RoutedTurns(), switched=True)
