"""The folder's lock, and the marker that notices when a store went back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from persistence.data_dir import Marker, MarkerRecord
from persistence.folder_lock import FolderLock
from sessions.model.errors import Unavailable


def test_a_locked_folder_is_refused_by_name_and_free_after_release(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    first, second = FolderLock(folder), FolderLock(folder)
    first.take()
    with pytest.raises(Unavailable) as caught:
        second.take()
    assert caught.value.code == "journal_folder_locked"
    assert str(folder) in caught.value.public_message
    first.release()
    second.take()
    second.release()
    second.release()


def test_the_lock_of_a_dead_process_is_gone(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from persistence.folder_lock import FolderLock\n"
        f"lock = FolderLock(Path({str(tmp_path)!r})); lock.take(); print('taken', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "taken\n"
    with pytest.raises(Unavailable, match=f"pid {holder.pid}"):
        FolderLock(tmp_path).take()
    holder.kill()
    holder.communicate()
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()


def test_a_file_where_the_folder_should_be_is_refused_with_its_name(tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.write_text("")
    with pytest.raises(Unavailable) as caught:
        FolderLock(place).take()
    assert caught.value.code == "journal_folder_unusable"
    assert str(place) in caught.value.public_message


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


def test_a_marker_remembers_its_last_write(tmp_path: Path) -> None:
    path = tmp_path / "marker"
    marker = Marker(path)
    assert marker.open() is None
    marker.write("one", 7)
    marker.write("one", 8)
    found = reopened(path)  # as after a kill: it was neither synced nor closed
    assert found is not None
    assert (found.incarnation, found.position) == ("one", 8)
    marker.close()
    assert reopened(path) is not None


def test_a_shorter_mark_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "marker"
    marker = Marker(path)
    marker.open()
    marker.write("a-long-name-of-an-incarnation", 2**52)
    marker.write("b", 1)
    found = reopened(path)
    assert found is not None and (found.incarnation, found.position) == ("b", 1)
    marker.close()


def test_a_marker_that_was_touched_after_its_write_is_not_believed(tmp_path: Path) -> None:
    """A copy of a marker is younger than what stands in it: as if written a minute ago and restored now."""
    path = tmp_path / "marker"
    clock = Clock()
    marker = Marker(path, now=clock)
    marker.open()
    clock.behind_s = 0.5
    marker.write("one", 7)
    assert reopened(path) is not None, "within the tolerance"
    clock.behind_s = 60.0
    marker.write("one", 7)
    assert reopened(path) is None
    marker.close()


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"incarnation": 3}', b"\0" * 256])
def test_a_marker_that_cannot_be_read_is_no_marker(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "marker"
    path.write_bytes(content)
    assert reopened(path) is None
