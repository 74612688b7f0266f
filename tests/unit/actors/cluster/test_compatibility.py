"""Who may join: one protocol for all, one set of weights and one tokenizer for each model."""

from __future__ import annotations

import msgspec
import pytest

from actors.cluster.compatibility import check_compatibility
from actors.cluster.versions import OURS
from sessions.model.errors import BadInput
from sessions.model.types import ReplicaId
from sessions.ports import Member, View
from tests.support.cluster.harness import cluster
from tests.support.virtual_time import virtual

R1 = Member(replica=ReplicaId("r1"), incarnation="i1", address="a", model="small", fingerprint="w1/t1")
R2 = msgspec.structs.replace(R1, replica=ReplicaId("r2"), incarnation="i2")
VIEW = View(1, (R1,))


@pytest.mark.parametrize(
    ("fingerprint", "says"),
    [
        ("w2/t1", "both serve 'small', but its model is w2, that of r1 is w1."),
        ("w1/t2", "but its tokenizer is t2, that of r1 is t1."),
        ("w2/t2", "its model is w2, that of r1 is w1 and its tokenizer is t2, that of r1 is t1."),
        ("w1", "its fingerprint is w1, that of r1 is w1/t1."),
        ("w1/t1/tiny s1", "its smaller model is tiny s1, that of r1 is none."),
    ],
)
def test_another_fingerprint_is_refused_saying_what_differs(fingerprint: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_compatibility(msgspec.structs.replace(R2, fingerprint=fingerprint), VIEW)
    assert refused.value.public_message.startswith("r2 cannot join r1: ") and says in refused.value.public_message


def test_replicas_with_other_smaller_models_cannot_go_on_with_each_others_answers() -> None:
    one = msgspec.structs.replace(R1, fingerprint="w1/t1/tiny s1")
    other = msgspec.structs.replace(R2, fingerprint="w1/t1/mini s2")
    check_compatibility(msgspec.structs.replace(other, fingerprint=one.fingerprint), View(1, (one,)))
    with pytest.raises(BadInput, match="its smaller model is mini s2, that of r1 is tiny s1"):
        check_compatibility(other, View(1, (one,)))


def test_a_neighbour_joins_and_one_that_shares_no_protocol_is_refused_saying_what_to_do() -> None:
    check_compatibility(msgspec.structs.replace(R2, protocols=(1, 2)), VIEW)
    says = (
        "r2 cannot join r1: it speaks peer protocols 2 to 3, r1 speaks peer protocol 1: they are more than one release"
    )
    with pytest.raises(BadInput, match=says) as refused:
        check_compatibility(msgspec.structs.replace(R2, protocol=2, protocols=(2, 3)), VIEW)
    assert "upgrade r1 first, one release at a time" in refused.value.public_message


def test_a_process_that_was_this_replica_before_does_not_hinder_it() -> None:
    check_compatibility(msgspec.structs.replace(R1, incarnation="i9", fingerprint="w2/t2"), VIEW)


@virtual
async def test_a_replica_announces_its_protocol_and_what_its_engine_can() -> None:
    async with cluster(replicas=1) as made:
        (announced,) = made.gateways["g1"].router.routes.view.members
        assert announced.engine == made.replicas["r1"].replica.engine.info
        assert (announced.protocol, announced.protocols) == (OURS[0], OURS), "older programs compare the first alone"
