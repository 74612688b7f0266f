"""The folder's lock, and the marker that notices when a store went back."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.data_dir import Marker, MarkerRecord


class Clock:
    """A clock that runs beside the machine's own, `behind_s` behind it."""

    def __init__(self) -> None:
        import time

        self._time = time.time
        self.behind_s = 0.0

    def __call__(self) -> float:
        return self._time() - self.behind_s


def reopened(path: Path) -> MarkerRecord | None:
    marker = Marker(path)
    try:
        return marker.open()
    finally:
        marker.close()


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"incarnation": 3}', b"\0" * 256])
def test_a_marker_that_cannot_be_read_is_no_marker(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "marker"
    path.write_bytes(content)
    assert reopened(path) is None
