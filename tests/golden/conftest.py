"""`pytest tests/golden --record` writes the transcripts anew. Read the difference before you keep it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the golden transcripts anew")
