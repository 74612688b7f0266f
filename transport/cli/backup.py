"""Backups of the journal in an object store: ships, verifies and restores them. See docs/backup.md.

A server that is started with --backup ships by itself; these are for when none runs, and for looking.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol

import msgspec

from transport.cli.plain_text import plain
from transport.cli.settings import BadSetting
from transport.cli.shared_flags import Json, table, text

EXAMPLE: Final = "2026-11-24T01:20:00Z"


class RunBackup(msgspec.Struct, frozen=True, kw_only=True):
    """Ships what is not in the backup yet, and ends; the server must not be running, since it ships by itself."""

    as_json: Json = False


class VerifyBackup(msgspec.Struct, frozen=True, kw_only=True):
    """Looks the whole backup over: every hash, the order, every seal, every record; status 1 if anything is wrong.

    With --restore the newest state is restored into a scratch folder (under TMPDIR) and compared record by record with
    the journal of --data, where there is one: its server may be running.
    """

    restore: Annotated[bool, text("", "into a scratch folder; then compare with the journal of --data")] = False
    metrics_file: Annotated[
        str, text("FILE", "with --restore: metrics of it, for the node exporter's textfile collector")
    ] = ""
    as_json: Json = False


class RestoreBackup(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a journal in --data as it was at a time, checked record by record; or brings one session back.

    A whole restore wants a folder without a journal. With --session that session alone is put into the journal of
    --data, in the place of what there is of it; the server must not be running.
    """

    at: Annotated[str, text("TIME", f"{EXAMPLE}, or seconds since 1970; without it the last moment there is")] = ""
    session: Annotated[str, text("SESSION", "only this one")] = ""
    tenant: Annotated[str, text("TENANT", "whose session that is")] = ""
    as_json: Json = False


BackupCommand = RunBackup | VerifyBackup | RestoreBackup


def parse_time(written: str) -> int | None:
    """Unix milliseconds; None where no time is given. A time without a zone is UTC. Raises BadSetting."""
    if not written:
        return None
    try:
        return round(float(written) * 1000)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(written)
    except ValueError as exc:
        raise BadSetting(f"at = {written!r}: it is a time as {EXAMPLE}, or seconds since 1970") from exc
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def time_text(at_ms: int | None) -> str:
    return "-" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


class ShownChain(Protocol):
    @property
    def chain(self) -> str: ...
    @property
    def segments(self) -> int: ...
    @property
    def from_(self) -> int | None: ...
    @property
    def to(self) -> int | None: ...


class ShownVerification(Protocol):
    @property
    def chains(self) -> Sequence[ShownChain]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def destroyed(self) -> int: ...
    @property
    def findings(self) -> Sequence[str]: ...


class ShownDrill(Protocol):
    @property
    def taken_at(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def restored(self) -> ShownRestore: ...
    @property
    def compared(self) -> int: ...
    @property
    def changed_since(self) -> int: ...
    @property
    def findings(self) -> Sequence[str]: ...


class ShownRestore(Protocol):
    @property
    def taken_at(self) -> int: ...
    @property
    def segments(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def sessions(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def destroyed(self) -> int: ...
    @property
    def unreadable(self) -> int: ...
    @property
    def problems(self) -> Sequence[str]: ...


def format_shipped(chain: str, segment: int, *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode({"chain": chain, "segment": segment}).decode()
    return f"the backup has everything: chain {chain}, segment {segment}"


def format_verified(report: ShownVerification, *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(report).decode()
    rows = [("chain", "segments", "restorable from", "to")]
    rows += [(each.chain, str(each.segments), time_text(each.from_), time_text(each.to)) for each in report.chains]
    counts = f"{report.records} records read, {report.bytes} bytes; {report.destroyed} parts without a key (destroyed)"
    result = "nothing is wrong" if not report.findings else f"{len(report.findings)} objects are damaged or missing:"
    return "\n".join([table(rows), counts, result, *map(plain, report.findings)])


def format_drill(report: ShownDrill, *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(report).decode()
    result = "nothing is wrong" if not report.findings else f"{len(report.findings)} findings:"
    return "\n".join(
        [
            f"restored as of {time_text(report.taken_at)} in {report.seconds:.1f} s: {report.restored.records} records",
            f"{report.compared} are the same in the journal; {report.changed_since} were changed or deleted since",
            result,
            *map(plain, report.findings),
        ]
    )


def format_restored(report: ShownRestore, *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(report).decode()
    lines = [
        f"restored as of {time_text(report.taken_at)}: {report.sessions} sessions, {report.records} records, each read",
        f"{report.segments} segments, {report.bytes} bytes; {report.destroyed} parts without a key (destroyed)",
    ]
    if report.unreadable:
        lines.append(f"{report.unreadable} records are under keys that were destroyed")
    if report.problems:
        lines += [f"{len(report.problems)} problems:", *map(plain, report.problems)]
    return "\n".join(lines)
