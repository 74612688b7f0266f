"""The list of models for people and programs, and the bar of a pull on a terminal and in a log."""

from __future__ import annotations

import io
import json

from transport.cli.models import ModelRow, ProgressLine, format_models

ROWS = [ModelRow("tiny", 98_000_000, "Apache-2.0", "/models/tiny.gguf"), ModelRow("big", 4_000_000_000, "", "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_models_are_a_table_or_json() -> None:
    lines = format_models(ROWS, as_json=False).splitlines()
    assert lines[0].split() == ["model", "size", "licence", "where"]
    assert lines[1].split() == ["tiny", "98", "MB", "Apache-2.0", "/models/tiny.gguf"]
    assert "4,000 MB" in lines[2] and "not named" in lines[2] and lines[2].endswith("not fetched yet")
    assert json.loads(format_models(ROWS, as_json=True))[1]["size_bytes"] == 4_000_000_000


def test_a_log_gets_a_line_every_tenth_and_a_terminal_one_bar() -> None:
    log, terminal = io.StringIO(), Terminal()
    for out in (log, terminal):
        line = ProgressLine(out)
        for done in range(0, 1_000_001, 10_000):
            line("m.gguf", done, 1_000_000)
        line.end()
    assert len(log.getvalue().splitlines()) == 11 and log.getvalue().endswith("100%  1 of 1 MB\n")
    assert terminal.getvalue().count("\n") == 1 and "[########################] m.gguf  100%" in terminal.getvalue()


def test_the_next_file_begins_a_line_of_its_own() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line("a", 0, 0)
    line("b", 1, 2)
    assert terminal.getvalue().split("\n")[0].endswith("a  100%  0 of 0 MB")
