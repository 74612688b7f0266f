"""Observes a cluster for `./sessile doctor`: directory, replicas, journal, gateways, certificates and disk, at once.

Part of the entry point. Whatever does not answer is a finding and no error of this command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509

from actors.directory.valkey import ValkeyDirectory
from actors.peer.client import PeerClient
from actors.peer.frames import Surveyed
from actors.peer.links import LinkDown
from persistence.postgres.inspection import inspect_postgres
from sessions.model.errors import SessileError
from sessions.ports import View
from transport.auth.direct_fetch import open_direct
from transport.cli.doctor import ExamineCluster, format_findings, has_findings
from transport.cli.settings import Settings
from transport.cli.start.security import peer_security
from transport.ops.diagnosis import (
    CertificateObserved,
    DirectoryObserved,
    DiskObserved,
    GatewayObserved,
    JournalObserved,
    Observed,
    ReplicaObserved,
    diagnose,
)
from transport.ops.operator_requests import query_replicas

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 * 1024
CERTIFICATES: Final = ("tls_certificate", "peer_certificate", "peer_authority", "key_service_authority")


async def run_doctor(settings: Settings, command: ExamineCluster) -> int:
    """Prints what was found; returns the status to exit with. Raises BadSetting, BadInput."""
    findings = diagnose(await observe(settings, [url for url in command.gateways.split(",") if url]))
    print(format_findings(findings, as_json=command.as_json))
    return 1 if has_findings(findings, strict=command.strict) else 0


async def observe(settings: Settings, gateways: Sequence[str]) -> Observed:
    directory, journal, doors = await asyncio.gather(
        _directory(settings),
        _journal(settings.journal),
        asyncio.gather(*(asyncio.to_thread(observe_gateway, url) for url in gateways)),
    )
    return Observed(
        directory=directory[0],
        replicas=directory[1],
        journal=journal,
        certificates=tuple(_certificates(settings)),
        disk=_disk(Path(settings.data)),
        gateways=tuple(doors),
    )


async def _directory(settings: Settings) -> tuple[DirectoryObserved | None, tuple[ReplicaObserved, ...]]:
    """Observes the directory and the replicas in it; (None, ()) where the settings name none."""
    if not settings.directory:
        return None, ()
    directory, security = ValkeyDirectory(settings.directory), peer_security(settings)
    try:
        try:
            await directory.open()
            sent = time.time()
            ahead_s = await directory.clock_s() - (sent + time.time()) / 2
            view = await directory.view()
        finally:
            await directory.close()
    except SessileError as error:
        return DirectoryObserved(where=directory.where, failure=error.public_message), ()

    async def one(view: View) -> ReplicaObserved:
        (member,), begun = view.members, time.monotonic()
        answers = await query_replicas(security, view, "", _greet, name="doctor", timeout_s=TIMEOUT_S)
        answer = answers[str(member.replica)]
        silence = str(answer) if isinstance(answer, LinkDown) else ""
        peers = () if isinstance(answer, LinkDown) else answer.peers
        answered_s = time.monotonic() - begun
        return ReplicaObserved(member=member, answered_s=answered_s, silence=silence, peers=peers)

    alone = [msgspec.structs.replace(view, members=(member,)) for member in view.members]
    replicas = await asyncio.gather(*map(one, alone))
    return DirectoryObserved(where=directory.where, ahead_s=ahead_s), tuple(replicas)


async def _greet(link: PeerClient) -> Surveyed:
    """A question that every replica answers, and with it who has links to it."""
    return await link.survey(after=None, limit=1, tenant="", session="", state="")


async def _journal(url: str) -> JournalObserved | None:
    """None for one that is no server."""
    if not url.startswith(("postgresql://", "postgres://")):
        return None
    return msgspec.convert(msgspec.to_builtins(await inspect_postgres(url, time.time)), JournalObserved)


def observe_gateway(url: str) -> GatewayObserved:
    """Blocks for `TIMEOUT_S` at most an address."""
    if not url.startswith(("http://", "https://")):
        return GatewayObserved(url=url, failure="it is no http:// or https:// address")
    try:
        with open_direct(urllib.request.Request(f"{url.rstrip('/')}/readyz"), TIMEOUT_S) as answer:
            return GatewayObserved(url=url, replication_lag_s=_lag_of(answer.read(ANSWER_BYTES_MAX)))
    except urllib.error.HTTPError as error:
        try:
            body = error.read(ANSWER_BYTES_MAX)
            reason = str(json.loads(body)["reason"])
            return GatewayObserved(url=url, unready=reason, replication_lag_s=_lag_of(body))
        except (ValueError, KeyError, TypeError, OSError, HTTPException):
            return GatewayObserved(url=url, failure=f"it answers {error.code} and no reason")
    except (OSError, ValueError, HTTPException) as error:
        return GatewayObserved(url=url, failure=str(error))


def _lag_of(body: bytes) -> float | None:
    """Returns the lag of a journal's copy in an answer of `/readyz`; None if it names none, as a proxy's answer."""
    with contextlib.suppress(ValueError, AttributeError):
        lag_s = json.loads(body).get("replication_lag_s")
        return float(lag_s) if isinstance(lag_s, int | float) else None
    return None


def _certificates(settings: Settings) -> list[CertificateObserved]:
    """Of each file the certificate that ends first."""
    found = []
    for setting in CERTIFICATES:
        if path := getattr(settings, setting):
            try:
                chain = x509.load_pem_x509_certificates(Path(path).read_bytes())
                ends_in_s = min(each.not_valid_after_utc.timestamp() for each in chain) - time.time()
            except (OSError, ValueError) as error:
                found.append(CertificateObserved(setting=setting, path=path, failure=str(error)))
            else:
                found.append(CertificateObserved(setting=setting, path=path, ends_in_s=ends_in_s))
    return found


def _disk(folder: Path) -> DiskObserved | None:
    """None where this machine has no such folder."""
    if not folder.is_dir():
        return None
    usage = shutil.disk_usage(folder)
    return DiskObserved(path=str(folder), free_bytes=usage.free, total_bytes=usage.total)
