"""The command that looks a deployment over: its options, and how its findings are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from transport.cli.plain_text import plain
from transport.cli.shared_flags import Json, text

if TYPE_CHECKING:
    from transport.ops.diagnosis import Diagnosis

MARKS: Final = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


class ExamineCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Checks a cluster and says what to do: directory, leases, replicas, journal, clocks, certificates, disk.

    Takes the settings of a gateway or replica, on its machine or another one, and changes nothing. A single server is
    checked by --gateways alone: whether it is ready, how far the copy of its journal is behind, and its disk. Ends with
    status 1 when there is an error, or with --strict a warning.
    """

    gateways: Annotated[str, text("URL,...", "gateways to look at too, or a single server: http://10.0.0.5:8080")] = ""
    strict: Annotated[bool, Parameter(help="a warning ends with status 1, too", show_default=False)] = False
    as_json: Json = False


def format_findings(findings: Sequence[Diagnosis], *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(findings).decode()
    lines = []
    for each in findings:
        lines.append(plain(f"{MARKS[each.level]}  {each.part}: {each.text}"))
        if each.advice:
            lines.append(plain(f"{'':9}-> {each.advice}"))
    counts = {level: sum(each.level == level for each in findings) for level in MARKS}
    lines.append(f"{counts['error']} errors, {counts['warning']} warnings")
    return "\n".join(lines)


def has_findings(findings: Sequence[Diagnosis], *, strict: bool) -> bool:
    """Returns whether there is an error; with `strict`, or a warning."""
    return any(each.level == "error" or (strict and each.level == "warning") for each in findings)
