"""What a look at a deployment comes to: each thing that is wrong is found, with what to do, and nothing else is."""

from __future__ import annotations

import msgspec
import pytest

from actors.peer.frames import LinkedPeer
from sessions.model.generation import EngineInfo
from sessions.model.types import ReplicaId
from sessions.ports import Member
from transport.ops.diagnosis import (
    DAY_S,
    CertificateObserved,
    DirectoryObserved,
    DiskObserved,
    GatewayObserved,
    JournalObserved,
    Observed,
    ReplicaObserved,
    StandbyObserved,
    diagnose,
)

ENGINE = EngineInfo(
    model="m", build="1", model_fingerprint="w", context_window=4096, slots=4, sampling=frozenset({"seed"})
)
MEMBER = Member(
    replica=ReplicaId("r1"), incarnation="i", address="10.0.0.1:7400", model="m", fingerprint="w/t", engine=ENGINE
)
R1 = ReplicaObserved(member=MEMBER, answered_s=0.01)
R2 = ReplicaObserved(member=msgspec.structs.replace(MEMBER, replica=ReplicaId("r2")), answered_s=0.01)
STANDBY = StandbyObserved(name="s1", behind_bytes=1000, behind_s=0.1, synchronous=True)
JOURNAL = JournalObserved(schema_version=12, schema_required=12, schema_known=12, standbys=(STANDBY,))
WELL = Observed(
    directory=DirectoryObserved(where="valkey:6379"),
    replicas=(R1, R2),
    journal=JOURNAL,
    certificates=(CertificateObserved(setting="peer_certificate", path="tls.crt", ends_in_s=60 * DAY_S),),
    disk=DiskObserved(path="/data", free_bytes=50, total_bytes=100),
    gateways=(GatewayObserved(url="http://g1:8080"),),
)


def other(**changes: object) -> ReplicaObserved:
    """The second replica, as it might be."""
    return ReplicaObserved(member=msgspec.structs.replace(R2.member, **changes), answered_s=0.01)


def with_engine(**changes: object) -> ReplicaObserved:
    return other(engine=msgspec.structs.replace(ENGINE, **changes))


def journal(**changes: object) -> Observed:
    return msgspec.structs.replace(WELL, journal=msgspec.structs.replace(JOURNAL, **changes))


def seen(**changes: object) -> Observed:
    return msgspec.structs.replace(WELL, **changes)


def test_nothing_is_wrong_with_what_is_well() -> None:
    findings = diagnose(WELL)
    assert {each.level for each in findings} == {"ok"} and not any(each.advice for each in findings)
    parts = {each.part for each in findings}
    assert parts == {
        *(
            "directory",
            "replica r1",
            "replica r2",
            "versions",
            "journal",
            "gateway http://g1:8080",
            "peer_certificate",
            "disk",
        )
    }
    assert diagnose(Observed()) == [], "what was not looked at is not judged"


@pytest.mark.parametrize(
    ("observed", "level", "part", "text"),
    [
        (
            seen(directory=DirectoryObserved(where="v", failure="v does not answer.")),
            "error",
            "directory",
            "does not answer",
        ),
        (seen(directory=DirectoryObserved(where="v", ahead_s=-3.0)), "warning", "directory", "3.0 s behind"),
        (seen(directory=DirectoryObserved(where="v", ahead_s=31.0)), "error", "directory", "31.0 s ahead of"),
        (seen(replicas=()), "error", "replicas", "none of 0 takes sessions"),
        (seen(replicas=(R1, ReplicaObserved(member=R2.member, silence="refused"))), "error", "replica r2", "refused"),
        (seen(replicas=(R1, other(draining=True))), "warning", "replica r2", "is draining"),
        (seen(replicas=(R1, other(load=1.5))), "warning", "replica r2", "answers wait: load 1.50"),
        (seen(replicas=(ReplicaObserved(member=MEMBER, answered_s=2),)), "warning", "replica r1", "after 2.0 s"),
        (seen(replicas=(R1, other(fingerprint="x/t"))), "error", "replicas r1 and r2", "its model is w"),
        (seen(replicas=(R1, other(protocol=9))), "error", "replicas r1 and r2", "peer protocol"),
        (seen(replicas=(R1, with_engine(build="2"))), "warning", "replicas r1 and r2", "build differs: 1 and 2"),
        (seen(replicas=(R1, with_engine(slots=8))), "warning", "replicas r1 and r2", "slots differs: 4 and 8"),
        (journal(failure="refused"), "error", "journal", "does not answer (refused)"),
        (journal(standby=True), "error", "journal", "takes no writes"),
        (journal(schema_version=14, schema_required=13), "error", "journal", "has schema 14, this program knows 12"),
        (journal(schema_version=13), "warning", "journal", "has schema 13 of a newer version, which this program can"),
        (journal(schema_version=11), "warning", "journal", "would bring it to 12"),
        (journal(schema_version=0), "warning", "journal", "has no tables yet"),
        (journal(fsync=False), "error", "journal", "runs without fsync"),
        (journal(archive_fails=True), "error", "journal", "is not archived"),
        (journal(ahead_s=60.0), "error", "journal", "60.0 s ahead of"),
        (
            journal(standbys=(msgspec.structs.replace(STANDBY, behind_s=90.0, synchronous=False),)),
            *("warning", "journal", "asynchronous standby s1 is 0 MiB and 90 s behind"),
        ),
        (seen(gateways=(GatewayObserved(url="u", failure="refused"),)), "error", "gateway u", "refused"),
        (
            seen(gateways=(GatewayObserved(url="u", replication_lag_s=70.0),)),
            *("error", "gateway u", "has everything up to 70 s ago"),
        ),
        (
            seen(gateways=(GatewayObserved(url="u", unready="no replica is reachable"),)),
            *("error", "gateway u", "is not ready: no replica is reachable"),
        ),
        (
            seen(certificates=(CertificateObserved(setting="tls_certificate", path="p", ends_in_s=3 * DAY_S),)),
            *("warning", "tls_certificate", "p ends in 3 days"),
        ),
        (
            seen(certificates=(CertificateObserved(setting="tls_certificate", path="p", ends_in_s=-2 * DAY_S),)),
            *("error", "tls_certificate", "p ended 2 days ago"),
        ),
        (
            seen(certificates=(CertificateObserved(setting="tls_certificate", path="p", failure="no such file"),)),
            *("error", "tls_certificate", "p: no such file"),
        ),
        (seen(disk=DiskObserved(path="/d", free_bytes=9, total_bytes=100)), "warning", "disk", "/d has"),
    ],
)
def test_each_thing_that_is_wrong_is_found_once_with_what_to_do(
    observed: Observed, level: str, part: str, text: str
) -> None:
    (found,) = (each for each in diagnose(observed) if each.level != "ok" and each.part == part)
    assert found.level == level and text in found.text and found.advice


def test_a_drain_that_was_not_meant_can_be_taken_back() -> None:
    (found,) = (each for each in diagnose(seen(replicas=(R1, other(draining=True)))) if each.level == "warning")
    assert "`./sessile undrain r2`" in found.advice


def test_replicas_of_different_models_need_not_be_alike() -> None:
    different = other(model="n", fingerprint="x/y", engine=msgspec.structs.replace(ENGINE, model="n", slots=9))
    assert {each.level for each in diagnose(seen(replicas=(R1, different)))} == {"ok"}


def test_two_releases_side_by_side_are_named_with_who_runs_which() -> None:
    older = msgspec.structs.replace(R1, peers=(LinkedPeer("gateway", "g1", 1), LinkedPeer("replica", "r2", 2, "0.3.0")))
    newer = msgspec.structs.replace(other(version="0.3.0", protocols=(1, 2)), peers=(LinkedPeer("gateway", "g1", 1),))
    (mixed,) = [each for each in diagnose(seen(replicas=(older, newer))) if each.part == "versions"]
    assert mixed.level == "warning" and "docs/upgrading.md" in mixed.advice
    assert mixed.text == (
        "two releases are mixed: replica r2 run 0.3.0 (peer protocol 2);"
        " gateway g1, replica r1 run a version before they were named (peer protocol 1)"
    )


def test_one_that_is_too_far_away_is_an_error() -> None:
    (apart,) = [each for each in diagnose(seen(replicas=(other(protocols=(8, 9)),))) if each.part == "versions"][:1]
    assert apart.level == "error" and "replica r2 speaks peer protocols 8 to 9, this program speaks" in apart.text
