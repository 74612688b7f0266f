"""The pools of a view: what the replicas of each model announce, taken together. Pure except for its cache of one
view."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sessions.model.generation import EngineInfo
from sessions.ports import Member, View
from sessions.routing.models_file import NO_POOLS, PoolsNow
from sessions.routing.turn_facts import PoolState

UNKNOWN_WINDOW = 1 << 30  # for replicas that do not announce their engines


class PoolStates:
    """The states of the present view's pools, by model; call the object to get them. Members that drain or have no
    weight are not counted."""

    def __init__(self, view: Callable[[], View], file: PoolsNow = lambda: NO_POOLS) -> None:
        self._view = view
        self._file = file
        self._seen = set[str]()
        self._aliases: dict[str, str] = {}  # other names of known models
        self._looked_at: View | None = None
        self._states: Mapping[str, PoolState] = {}

    def __call__(self) -> Mapping[str, PoolState]:
        view = self._view()
        if view is not self._looked_at:
            self._looked_at = view
            self._states = pool_states(view)
            for member in view.members:
                self._seen.add(member.model)
                if member.engine is not None:
                    self._aliases |= dict.fromkeys(member.engine.aliases, member.model)
        return self._states

    def model_of(self, name: str) -> str | None:
        """Returns the model that `name` means: the model of that name, or the one that an engine announces under it as
        an alias; None if there is neither."""
        return name if name in self.known() else self._aliases.get(name)

    def known(self) -> set[str]:
        """Returns the models that exist: those of the models file, and those of all views since the start. A model
        whose replicas are all away still exists."""
        self()
        return self._seen.union(self._file().file.models)


def pool_states(view: View) -> dict[str, PoolState]:
    pools: dict[str, list[Member]] = {}
    for member in view.members:
        if not member.draining and member.weight > 0:
            pools.setdefault(member.model, []).append(member)
    return {
        model: pool_state(
            [member.engine for member in members if member.engine is not None], [member.load for member in members]
        )
        for model, members in pools.items()
    }


def pool_state(engines: list[EngineInfo], loads: list[float]) -> PoolState:
    return PoolState(
        replicas=len(loads),
        load=sum(loads) / max(1, len(loads)),
        window=min((each.context_window for each in engines), default=UNKNOWN_WINDOW),
        tools=all(each.takes_tools for each in engines),
        sampling=frozenset.intersection(*(each.sampling for each in engines)) if engines else None,
        aliases=frozenset(alias for each in engines for alias in each.aliases),
        images=all(each.images for each in engines),
    )
