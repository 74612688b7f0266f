"""The one table: every code that anybody raises has its row, and the documentation shows the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from sessions.model import errors as kinds
from sessions.model.types import IncompleteReason
from transport import errors
from transport.errors import CODES, INNER, STARTUP, public, public_code, row

ROOT = Path(__file__).resolve().parents[3]
CLASSES = {
    name for name, value in vars(kinds).items() if isinstance(value, type) and issubclass(value, kinds.SessileError)
}
GRPC = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "UNIMPLEMENTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
}


PACKAGES = ("sessions", "actors", "inference", "persistence", "transport")


def raised() -> dict[str, set[str]]:
    """Every code that stands as a literal in the making of an error: code → files."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name | ast.Attribute):
                    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                    first = node.args[0]
                    if name in CLASSES and isinstance(first, ast.Constant) and isinstance(first.value, str):
                        found.setdefault(first.value, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_every_code_that_is_raised_has_a_row() -> None:
    codes = raised()
    assert len(codes) > 30, "the search finds what it should"
    known = CODES.keys() | INNER.keys() | STARTUP
    assert {code: files for code, files in codes.items() if code not in known} == {}


def test_every_internal_code_is_raised_somewhere() -> None:
    sources = [ROOT / "app.py", *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]
    text = "".join(path.read_text() for path in sources if path != ROOT / "transport" / "errors.py")
    assert [code for code in INNER if f'"{code}"' not in text] == []


def test_every_reason_of_an_incomplete_answer_is_one_that_the_protocol_names() -> None:
    """Old logs may have others: `incomplete_details` is read as it is, and clients take any reason."""
    table = (ROOT / "docs/protocol.md").read_text().partition("| `reason` | the answer ended because |")[2]
    named = re.findall(r"`([a-z_]+)`", "".join(row.split("|")[1] for row in table.partition("\n\n")[0].split("\n")[2:]))
    assert sorted(named) == sorted(get_args(IncompleteReason))


def test_rows_make_sense() -> None:
    assert all(400 <= found.http <= 599 and found.grpc in GRPC for found in CODES.values())
    assert all(found.close is None or 1000 <= found.close < 5000 for found in CODES.values())
    assert set(INNER.values()) <= CODES.keys()
    assert not CODES.keys() & INNER.keys()


def documented() -> dict[str, tuple[int, str, int | None]]:
    """The table of section 7.2 of the specification."""
    text = (ROOT / "docs" / "protocol.md").read_text()
    section = text.split("### 7.2", 1)[1].split("\n## ", 1)[0]
    rows = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 5 and cells[1].isdigit():
            for code in re.findall(r"`([a-z_]+)`", cells[0]):
                rows[code] = (int(cells[1]), cells[2], int(cells[3]) if cells[3] else None)
    return rows


def test_the_specification_has_the_same_table() -> None:
    assert documented() == {code: tuple(found) for code, found in CODES.items()}


def test_inner_codes_are_told_by_their_public_name() -> None:
    assert public(kinds.Unavailable("session_moving", "Changing hands.", retry_after_ms=200)) == {
        "type": "server_error",
        "code": "fenced",
        "message": "Changing hands.",
        "param": None,
        "retryable": True,
        "retry_after_ms": 200,
    }
    assert row("session_moving").http == 503


@pytest.mark.parametrize("code", ["never_heard_of", ""])
def test_a_code_without_a_row_says_nothing_of_itself(code: str) -> None:
    body = public(kinds.BadInput(code, "A secret of ours."))
    assert (body["code"], body["message"]) == ("internal_error", "The server failed to carry this out.")
    assert (public_code(code), row(code).close) == ("internal_error", errors.INTERNAL)
