"""Which protocol two processes speak: the newest that both know, or none, and then what to do."""

from __future__ import annotations

import msgspec
import pytest

from actors.cluster.versions import OURS, common_protocol, protocol_mismatch, protocols_of
from sessions.model.types import ReplicaId
from sessions.ports import Member

OLD = Member(replica=ReplicaId("r1"), incarnation="i1", address="a", model="m", fingerprint="w/t")
NEW = msgspec.structs.replace(OLD, protocol=OURS[0], protocols=OURS, version="0.3.0")


@pytest.mark.parametrize(
    ("one", "other", "spoken"),
    [
        ((1, 1), (1, 2), 1),
        ((1, 2), (1, 2), 2),
        ((1, 2), (2, 3), 2),
        ((1, 1), (2, 3), None),
        ((3, 4), (1, 2), None),
    ],
)
def test_two_speak_the_newest_that_both_know(one: tuple[int, int], other: tuple[int, int], spoken: int | None) -> None:
    assert common_protocol(one, other) == common_protocol(other, one) == spoken
    assert (protocol_mismatch("g1", one, "r1", other) is None) == (spoken is not None)


def test_the_refusal_says_who_is_to_be_upgraded() -> None:
    says = "g1 speaks peer protocol 1, r1 speaks peer protocols 2 to 3: they are more than one release apart;"
    assert protocol_mismatch("g1", (1, 1), "r1", (2, 3)) == f"{says} upgrade g1 first, one release at a time"
    assert (protocol_mismatch("g1", (4, 5), "r1", (2, 3)) or "").endswith("upgrade r1 first, one release at a time")


def test_a_member_without_a_range_speaks_the_one_that_it_names() -> None:
    assert protocols_of(OLD) == (1, 1) and protocols_of(NEW) == OURS
    assert NEW.protocol == OLD.protocol, "an older program refuses a member that names another number"


def test_neighbours_share_a_protocol() -> None:
    """What this release speaks includes what the one before speaks."""
    assert common_protocol(OURS, (1, 1)) is not None
