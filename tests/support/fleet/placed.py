"""Who owns which session in a simulated fleet: the product's directory and placement, driven session by session.

Nothing is decided here. `DirectoryState` wins or refuses claims, `BoundedRendezvous` chooses among the members of the
views that it is given, one for each placing process, as old as views are (`VIEW_S`). Leases are held by their replicas
(`joined`) and end when the simulation says so (`lapsed`): a renewal of each by each is what a fleet costs, not what it
decides, and is counted in `renewal_bytes`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from actors.cluster.placement import BoundedRendezvous
from actors.directory.rules import DirectoryState
from sessions.model.generation import EngineInfo
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Claim, Member, Owner, View
from tests.support.fleet.scenario import Bools, Floats, Scenario

VIEW_S: Final = 2  # loads are announced so often
FOREVER_S: Final = 1e12
MODEL: Final = "m"


class Placed:
    """Sessions and replicas by number. `operations` counts what the directory was given to do."""

    def __init__(self, scenario: Scenario, placement: type[BoundedRendezvous] = BoundedRendezvous) -> None:
        self.directory = DirectoryState()
        self.operations: Counter[str] = Counter()
        self.placers = [placement() for _ in range(scenario.placers)]
        self._tenants = [TenantId(f"t{number}") for number in range(scenario.tenants)]
        info = EngineInfo(
            model=MODEL,
            build="b",
            model_fingerprint="f",
            context_window=scenario.engine.context,
            slots=scenario.engine.slots,
            sampling=frozenset(),
        )
        self.members = [
            Member(
                replica=ReplicaId(f"replica-{number:05}"),
                incarnation="0",
                address=f"replica-{number:05}.pool:7000",
                model=MODEL,
                fingerprint="f",
                engine=info,
            )
            for number in range(scenario.replicas)
        ]
        self.numbers = {member.replica: number for number, member in enumerate(self.members)}
        self._activations = 0
        self._placings = 0
        self._views: list[View] = []

    def key(self, session: int) -> SessionKey:
        return SessionKey(self._tenants[session % len(self._tenants)], SessionId(f"s{session}"))

    # -- replicas -----------------------------------------------------------------------------------

    def joined(self, replica: int, now: float, *, anew: bool = False) -> None:
        member = self.members[replica]
        if anew:
            member = msgspec.structs.replace(member, incarnation=str(int(member.incarnation) + 1), draining=False)
            self.members[replica] = member
        self.directory.announce(member, generation=0, seen=0, ttl=FOREVER_S, now=now)

    def draining(self, replica: int, now: float) -> None:
        self.members[replica] = msgspec.structs.replace(self.members[replica], draining=True)
        self.joined(replica, now)

    def lapsed(self, replica: int, now: float) -> None:
        """Its lease has ended, or was given back: every entry of it with it."""
        member = self.members[replica]
        self.directory.withdraw(member.replica, member.incarnation, now=now)

    def views(self, version: int, listed: Bools, loads: Floats) -> None:
        """What placing processes know from now on. Each has read it for itself."""
        members = tuple(
            msgspec.structs.replace(member, load=load)
            for member, load, is_listed in zip(self.members, loads.tolist(), listed.tolist(), strict=True)
            if is_listed
        )
        self._views = [View(version, members) for _ in self.placers]

    @property
    def view(self) -> View:
        return self._views[0]

    def limits(self) -> dict[ReplicaId, float]:
        """The bounds of the view, as every replica reckons them for itself."""
        return self.placers[0].limits(self.view, model=MODEL)

    @staticmethod
    def loaded(member: Member, load: float) -> Member:
        return msgspec.structs.replace(member, load=load)

    # -- sessions -----------------------------------------------------------------------------------

    def choose(self, session: int, *, holder: int = -1, avoid: list[ReplicaId] | None = None) -> int:
        """The replica for a session without an owner, by the next of the placing processes; -1: none takes any."""
        self._placings += 1
        turn = self._placings % len(self.placers)
        found = self.placers[turn].choose(
            self.key(session),
            self._views[turn],
            model=MODEL,
            holder=self.members[holder].replica if holder >= 0 else None,
            avoid=avoid or (),
        )
        return -1 if found is None else self.numbers[found.replica]

    def claim(self, session: int, replica: int, now: float, *, instead_of: Owner | None = None) -> Claim:
        self.operations["claim"] += 1
        self._activations += 1
        member = self.members[replica]
        owner = Owner(member.replica, member.incarnation, ActivationId(f"{self._activations:x}"))
        return self.directory.claim(self.key(session), owner, instead_of=instead_of, now=now)

    def located(self, session: int, now: float) -> Owner | None:
        self.operations["locate"] += 1
        return self.directory.locate(self.key(session), now=now)

    def released(self, session: int, now: float) -> None:
        """The session leaves memory. Its replica knows the owner that it is."""
        owner = self.directory.locate(self.key(session), now=now)
        if owner is not None:
            self.operations["release"] += 1
            self.directory.release(self.key(session), owner)

    def owner_number(self, owner: Owner) -> int:
        return self.numbers[owner.replica]


def member_bytes(member: Any) -> int:
    return len(msgspec.json.encode(member))
