"""No tracked text has the markers that an unfinished merge leaves in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MARKER = re.compile(rb"^(<{7} |\|{7} |>{7} |<{7}$|>{7}$)", re.MULTILINE)


def has_markers(content: bytes) -> bool:
    return b"\0" not in content and MARKER.search(content) is not None


def test_no_tracked_file_has_conflict_markers() -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    paths = [ROOT / name.decode() for name in names if name]
    marked = [str(path) for path in paths if path.is_file() and has_markers(path.read_bytes())]
    assert paths and marked == []


def test_planted_markers_are_seen_and_headings_are_not() -> None:
    sides = b"<" * 7 + b" HEAD\none\n" + b"=" * 7 + b"\ntwo\n" + b">" * 7 + b" main\n"
    assert has_markers(b"text\n" + sides) and has_markers(b">" * 7 + b" main\n")
    assert not has_markers(b"Heading\n" + b"=" * 7 + b"\n") and not has_markers(b"\0" + sides)
