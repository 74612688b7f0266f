"""One text tokenised twice: as an engine wrote it, and as it is read anew."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sessions.model.generation import EngineInfo
from sessions.model.types import Tokens
from sessions.ports import Tokenizer
from sessions.turn.call_formats import FORMATS
from sessions.turn.channels import FINAL, MARKS


async def tail_ids(tokenizer: Tokenizer, info: EngineInfo, tail: str, *, first: bool = False) -> Tokens:
    """Returns the ids of text that a model wrote behind the ledger. The marks of its channels are special tokens again;
    where a rewritten text stands `first` in an answer in channels, it gets the header that it lost."""
    ids: list[int] = []
    if first and tail and info.thoughts is not None and info.thoughts.channels:
        ids += () if any(mark in tail for mark in MARKS) else await tokenizer.scaffold(FINAL)
    specials = FORMATS[info.call_format].specials
    if not specials:
        return [*ids, *await tokenizer.text(tail)]
    for odd, part in enumerate(re.split(f"({'|'.join(map(re.escape, specials))})", tail)):
        ids += await (tokenizer.scaffold(part) if odd % 2 else tokenizer.text(part))
    return ids


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
