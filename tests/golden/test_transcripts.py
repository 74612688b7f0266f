"""Every transcript says what the machine does now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machine.transcript import replayed

TRANSCRIPTS = sorted((Path(__file__).parent / "machine").glob("*.txt"))


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) > 10


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    now = replayed(written)
    if request.config.getoption("--record", default=False):
        path.write_text(now)
    else:
        assert now == written, "run `pytest tests/golden --record`, and read the difference"
