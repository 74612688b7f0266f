"""Looks at a ZIP container before anything unpacks it: how many parts it has, and how large they become.

The directory may lie about sizes: the memory of the process that unpacks is bounded as well, and what a part gives is
cut off at the size that is stated (`zipfile` does that).
"""

from __future__ import annotations

import io
import zipfile
from typing import Final

from sessions.model.knowledge.documents import too_complex_file, unreadable_file

PARTS_MAX: Final = 5_000
UNPACKED_BYTES_MAX: Final = 192 << 20
PART_BYTES_MAX: Final = 96 << 20
RATIO_MAX: Final = 150
RATIO_FROM_BYTES: Final = 4 << 20  # smaller parts may be as dense as they like


def check_zip(content: bytes) -> frozenset[str]:
    """Checks a ZIP file against bounds; returns the names of its parts. Raises BadInput, TooLarge."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, ValueError, OSError, EOFError) as exc:
        raise unreadable_file("its container is damaged") from exc
    if len(parts) > PARTS_MAX:
        raise too_complex_file(f"it has {len(parts)} parts, and {PARTS_MAX} at most are read")
    total = 0
    for part in parts:
        if part.flag_bits & 1:
            raise unreadable_file("it is locked with a password")
        total += part.file_size
        dense = part.file_size > RATIO_FROM_BYTES and part.file_size > RATIO_MAX * max(1, part.compress_size)
        if part.file_size > PART_BYTES_MAX or total > UNPACKED_BYTES_MAX or dense:
            raise too_complex_file("it becomes too large when it is unpacked")
    names = [part.filename for part in parts]
    if len(set(names)) != len(names):
        raise unreadable_file("two of its parts have one name")
    return frozenset(names)
