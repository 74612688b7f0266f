"""The first lines in a sandbox: what code sees, and how its process ends."""

from __future__ import annotations

import pytest

from inference.tools.code.bootstrap import run


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("1 + 1", 0, "2\n"),
        ("x = 3\nprint('a')\nx * 7", 0, "a\n21\n"),
        ("None", 0, ""),
        ("", 0, ""),
        ("import sys\nsys.exit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("def f():\n    return __name__\nf()", 0, "'__main__'\n"),
    ],
)
def test_code_runs_like_a_cell(code: str, status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(code) == status
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("code", ["1 / 0", "x =", "raise KeyboardInterrupt", "import sys\nsys.exit('no')"])
def test_what_goes_wrong_is_said_without_our_frames(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(code) == 1
    said = capsys.readouterr().err
    assert said and "bootstrap" not in said
