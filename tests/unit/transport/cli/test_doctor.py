"""How findings are printed, and what the exit status says."""

from __future__ import annotations

import json

from transport.cli.doctor import format_findings, has_findings
from transport.ops.diagnosis import Diagnosis

OK = Diagnosis("ok", "disk", "has room")
WARNING = Diagnosis("warning", "journal", "has no tables yet", "the first process makes them")
ERROR = Diagnosis("error", "replica \x1b[2J", "does not answer", "look at it")


def test_findings_are_lines_with_what_to_do_below() -> None:
    lines = format_findings([OK, WARNING, ERROR], as_json=False).splitlines()
    assert lines[0] == "ok       disk: has room"
    assert lines[1:3] == ["WARNING  journal: has no tables yet", "         -> the first process makes them"]
    assert lines[-1] == "1 errors, 1 warnings" and "\x1b" not in "".join(lines)


def test_findings_as_json() -> None:
    assert json.loads(format_findings([WARNING], as_json=True)) == [
        {"level": "warning", "part": "journal", "text": WARNING.text, "advice": WARNING.advice}
    ]


def test_the_exit_status_says_whether_there_is_something_to_do() -> None:
    assert not has_findings([OK, WARNING], strict=False)
    assert has_findings([OK, WARNING], strict=True) and has_findings([ERROR], strict=False)
    assert not has_findings([OK], strict=True)
