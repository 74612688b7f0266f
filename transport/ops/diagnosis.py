"""Judges a deployment from what was observed of it: what is wrong, and what to do. For `./sessile doctor`.

Pure: who observes is the entry point. A warning is what will hurt later; an error hurts now. Nothing observed is no
judgement: a part that was not looked at is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, Literal

import msgspec

from actors.cluster.compatibility import difference
from actors.cluster.versions import OURS, protocol_mismatch, protocols_of
from actors.peer.frames import LinkedPeer
from sessions.ports import Member

CLOCK_WARNING_S: Final = 2.0
CLOCK_ERROR_S: Final = 30.0
CERTIFICATE_WARNING_DAYS: Final = 14
FREE_PART_MIN: Final = 0.1
LAG_BYTES_MAX: Final = 64 * 1024 * 1024
LAG_S_MAX: Final = 30.0
REPLICATION_LAG_S_MAX: Final = 10.0  # as docs/backup.md says
LINK_SLOW_S: Final = 0.5
DAY_S: Final = 86_400

Level = Literal["ok", "warning", "error"]


class Diagnosis(msgspec.Struct, frozen=True):
    """One finding about one `part` of a cluster. `advice` is empty if there is nothing to do."""

    level: Level
    part: str
    text: str
    advice: str = ""


class DirectoryObserved(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    failure: str = ""
    ahead_s: float = 0.0  # its clock, compared with this machine's


class ReplicaObserved(msgspec.Struct, frozen=True, kw_only=True):
    """A replica with a valid lease. `silence`: why its peer link did not answer."""

    member: Member
    answered_s: float = 0.0
    silence: str = ""
    peers: tuple[LinkedPeer, ...] = ()  # the processes that have links to it


class StandbyObserved(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    behind_bytes: int
    behind_s: float
    synchronous: bool


class JournalObserved(msgspec.Struct, frozen=True, kw_only=True):
    failure: str = ""
    ahead_s: float = 0.0
    standby: bool = False
    fsync: bool = True
    archive_fails: bool = False
    schema_version: int = 0
    schema_required: int = 0  # the schema that a program must know to use it
    schema_known: int = 0
    standbys: tuple[StandbyObserved, ...] = ()


class CertificateObserved(msgspec.Struct, frozen=True, kw_only=True):
    setting: str
    path: str
    failure: str = ""
    ends_in_s: float = 0.0


class DiskObserved(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    free_bytes: int
    total_bytes: int


class GatewayObserved(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    failure: str = ""  # why it did not answer
    unready: str = ""
    replication_lag_s: float | None = None  # of its journal's copy; None: it has none


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` has observed of a deployment. Fields that are None or empty were not examined."""

    directory: DirectoryObserved | None = None
    replicas: tuple[ReplicaObserved, ...] = ()
    journal: JournalObserved | None = None
    certificates: tuple[CertificateObserved, ...] = ()
    disk: DiskObserved | None = None
    gateways: tuple[GatewayObserved, ...] = ()


def diagnose(observed: Observed) -> list[Diagnosis]:
    """Returns the findings about everything that was observed, part by part."""
    findings: list[Diagnosis] = []
    if observed.directory is not None:
        findings += _directory(observed.directory)
        if not observed.directory.failure:
            findings += _replicas(observed.replicas)
    if observed.journal is not None:
        findings += _journal(observed.journal)
    for each in observed.gateways:
        findings += _gateway(each)
    for certificate in observed.certificates:
        findings += _certificate(certificate)
    if observed.disk is not None:
        findings += _disk(observed.disk)
    return findings


def _clock(part: str, ahead_s: float) -> Iterator[Diagnosis]:
    if abs(ahead_s) < CLOCK_WARNING_S:
        return
    level: Level = "error" if abs(ahead_s) >= CLOCK_ERROR_S else "warning"
    way = "ahead of" if ahead_s > 0 else "behind"
    text = f"its clock is {abs(ahead_s):.1f} s {way} this machine's"
    yield Diagnosis(level, part, text, "run a time service (chrony) on both machines; tokens and limits go by clocks")


def _directory(directory: DirectoryObserved) -> Iterator[Diagnosis]:
    if directory.failure:
        yield Diagnosis(
            "error", "directory", directory.failure, "start it, or mend --directory; owners go on meanwhile"
        )
        return
    yield Diagnosis("ok", "directory", f"{directory.where} answers")
    yield from _clock("directory", directory.ahead_s)


def _replicas(replicas: Sequence[ReplicaObserved]) -> Iterator[Diagnosis]:
    serving = [each for each in replicas if not each.member.draining and not each.silence]
    if not serving:
        yield Diagnosis("error", "replicas", f"none of {len(replicas)} takes sessions", "start one; look at its log")
    for each in replicas:
        name = f"replica {each.member.replica}"
        if each.silence:
            advice = (
                f"its lease lives, so its process does: see that {each.member.address} can be reached from here, with"
                " the token and the certificates of this machine"
            )
            yield Diagnosis("error", name, f"does not answer on its peer link ({each.silence})", advice)
        elif each.member.draining:
            advice = f"wait until it has ended; if it is to stay: `./sessile undrain {each.member.replica}`"
            yield Diagnosis("warning", name, "is draining", advice)
        elif each.answered_s > LINK_SLOW_S:
            text = f"answered after {each.answered_s:.1f} s"
            yield Diagnosis("warning", name, text, "look at its machine's load, and at the network")
        else:
            yield Diagnosis("ok", name, f"serves {each.member.model}, load {each.member.load:.2f}")
        if each.member.load > 1:
            text = f"answers wait: load {each.member.load:.2f}"
            yield Diagnosis("warning", name, text, "add replicas, or lower tenants' limits")
    yield from _differences([each.member for each in replicas])
    yield from _versions(replicas)


def _differences(members: Sequence[Member]) -> Iterator[Diagnosis]:
    """Yields the differences between replicas of one model. With some, sessions cannot move between them; with others,
    their limits change when they move."""
    for one, another in combinations(members, 2):
        names = f"replicas {one.replica} and {another.replica}"
        apart = difference(one, another)
        if apart is not None:
            yield Diagnosis("error", names, apart, "give both the same model and version")
        elif one.model == another.model and one.engine is not None and another.engine is not None:
            mine, its = msgspec.structs.asdict(one.engine), msgspec.structs.asdict(another.engine)
            for field in sorted(name for name in mine if mine[name] != its[name]):
                text = f"{field.replace('_', ' ')} differs: {_shown(mine[field])} and {_shown(its[field])}"
                advice = "KV does not move between builds: upgrade both" if field == "build" else "give both one value"
                yield Diagnosis("warning", names, text, advice)


def _versions(replicas: Sequence[ReplicaObserved]) -> Iterator[Diagnosis]:
    """Yields findings about different releases that run side by side. Two adjacent ones are allowed during an
    upgrade."""
    runs: dict[str, set[str]] = {}
    for each in replicas:
        member = each.member
        runs.setdefault(_release(member.version, protocols_of(member)[1]), set()).add(f"replica {member.replica}")
        apart = protocol_mismatch(f"replica {member.replica}", protocols_of(member), "this program", OURS)
        if apart is not None:
            yield Diagnosis("error", "versions", apart, "run doctor of the version that the cluster has")
        for peer in each.peers:
            if peer.kind == "gateway":
                runs.setdefault(_release(peer.version, peer.protocol), set()).add(f"gateway {peer.name}")
    if len(runs) > 1:
        parts = [f"{', '.join(sorted(names))} run {release}" for release, names in sorted(runs.items())]
        advice = "finish the upgrade, or go back, as docs/upgrading.md says: gateways first, then replicas"
        yield Diagnosis("warning", "versions", f"two releases are mixed: {'; '.join(parts)}", advice)
    elif runs:
        yield Diagnosis("ok", "versions", f"all run {next(iter(runs))}")


def _release(version: str, protocol: int) -> str:
    return f"{version or 'a version before they were named'} (peer protocol {protocol})"


def _shown(value: object) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, frozenset) else str(value)


def _journal(journal: JournalObserved) -> Iterator[Diagnosis]:
    part = "journal"
    if journal.failure:
        yield Diagnosis("error", part, f"does not answer ({journal.failure})", "start it, or mend --journal")
        return
    if journal.standby:
        yield Diagnosis(
            "error", part, "is a standby, which takes no writes", "name the primary, or both hosts, in --journal"
        )
    if journal.schema_required > journal.schema_known:
        text = f"has schema {journal.schema_version}, this program knows {journal.schema_known}"
        yield Diagnosis("error", part, text, "processes of this version do not start: use the newer one")
    elif journal.schema_version > journal.schema_known:
        text = f"has schema {journal.schema_version} of a newer version, which this program can use"
        yield Diagnosis("warning", part, text, "finish the upgrade: docs/upgrading.md")
    elif not journal.schema_version:
        yield Diagnosis("warning", part, "has no tables yet", "the first process that starts makes them")
    elif journal.schema_version < journal.schema_known:
        text = f"has schema {journal.schema_version}, this program would bring it to {journal.schema_known}"
        yield Diagnosis("warning", part, text, "back it up before you start this version")
    else:
        yield Diagnosis("ok", part, f"answers, with schema {journal.schema_version}")
    if not journal.fsync:
        yield Diagnosis("error", part, "runs without fsync", "set fsync = on: a power cut loses what was acknowledged")
    if journal.archive_fails:
        yield Diagnosis("error", part, "its WAL is not archived: the last attempt failed", "mend its archive_command")
    yield from _clock(part, journal.ahead_s)
    for each in journal.standbys:
        kind = "synchronous" if each.synchronous else "asynchronous"
        if each.behind_bytes > LAG_BYTES_MAX or each.behind_s > LAG_S_MAX:
            text = f"{kind} standby {each.name} is {each.behind_bytes >> 20} MiB and {each.behind_s:.0f} s behind"
            yield Diagnosis("warning", part, text, "look at its disk and network before you need it")
        else:
            yield Diagnosis("ok", part, f"{kind} standby {each.name} follows")


def _gateway(gateway: GatewayObserved) -> Iterator[Diagnosis]:
    part = f"gateway {gateway.url}"
    if gateway.failure:
        yield Diagnosis("error", part, f"does not answer ({gateway.failure})", "start it; look at its log")
    elif gateway.unready:
        yield Diagnosis("error", part, f"is not ready: {gateway.unready}", "mend what it names; it goes on by itself")
    else:
        yield Diagnosis("ok", part, "is ready")
    if gateway.replication_lag_s is not None:
        text = f"the copy of its journal has everything up to {gateway.replication_lag_s:.0f} s ago"
        if gateway.replication_lag_s > REPLICATION_LAG_S_MAX:
            advice = "look at `replication_behind` in its log, and at the place that --replicate names"
            yield Diagnosis("error", part, text, advice)
        else:
            yield Diagnosis("ok", part, text)


def _certificate(certificate: CertificateObserved) -> Iterator[Diagnosis]:
    part, days = certificate.setting, certificate.ends_in_s / DAY_S
    renew = "renew it; processes take a new file without a restart"
    if certificate.failure:
        yield Diagnosis("error", part, f"{certificate.path}: {certificate.failure}", "name a PEM certificate")
    elif days <= 0:
        yield Diagnosis("error", part, f"{certificate.path} ended {-days:.0f} days ago", renew)
    elif days < CERTIFICATE_WARNING_DAYS:
        yield Diagnosis("warning", part, f"{certificate.path} ends in {days:.0f} days", renew)
    else:
        yield Diagnosis("ok", part, f"{certificate.path} is good for {days:.0f} days")


def _disk(disk: DiskObserved) -> Iterator[Diagnosis]:
    text = f"{disk.path} has {disk.free_bytes / 1e9:.1f} GB free of {disk.total_bytes / 1e9:.1f} GB"
    if disk.free_bytes < FREE_PART_MIN * disk.total_bytes:
        yield Diagnosis("warning", "disk", text, "lower --kv-disk-mb, or give it more room")
    else:
        yield Diagnosis("ok", "disk", text)
