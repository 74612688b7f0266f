"""Snapshots of small chunks, so that a thousand of them take little time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference.kv import encryption, envelope


@pytest.fixture(scope="module")
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (envelope, encryption):
            patch.setattr(module, "CHUNK_BYTES", 16 * 1024)
        yield
