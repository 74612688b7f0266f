"""One text tokenised twice: as an engine wrote it, and as it is read anew."""

from __future__ import annotations

from collections.abc import Sequence


def as_written(given: Sequence[int], read: Sequence[int], written: Sequence[int]) -> list[int] | None:
    """Returns the ids `given` with those of `written` as far as they agree with `read`; None if that changes nothing.
    `read` and `written` are two tokenisations of one text.

    What stands behind the last difference of those two is the same text, and so is what stands before it."""
    shared = shared_length(given, read)
    alike = shared_length(read[::-1], written[::-1])
    if shared < len(read) - alike or read == written:
        return None
    return [*written[: len(written) - (len(read) - shared)], *given[shared:]]


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many leading ids two sequences share."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
