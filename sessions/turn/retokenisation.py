"""One text tokenised twice: as an engine wrote it, and as the tokenizer reads it again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sessions.model.generation import EngineInfo
from sessions.model.types import Tokens
from sessions.ports import Tokenizer
from sessions.turn.call_formats import FORMATS
from sessions.turn.channels import FINAL, MARKS


async def tail_ids(tokenizer: Tokenizer, info: EngineInfo, tail: str, *, first: bool = False) -> Tokens:
    """Returns the ids of text that a model wrote behind the ledger. Marks of its channels become special tokens again.
    `first`: the text begins the answer; if the model writes in channels and the text was rewritten, it gets back the
    header that it lost."""
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
    """Returns `given`, a tokenisation of a text, in which the part that agrees with `read` is replaced by that of
    `written`; None if nothing changes. `read` and `written` are two tokenisations of another text.

    The replacement is made only if `given` agrees with `read` up to behind the last place where `read` and `written`
    differ, so the text stays the same.
    """
    shared = shared_length(given, read)
    alike = shared_length(read[::-1], written[::-1])
    if shared < len(read) - alike or read == written:
        return None
    return [*written[: len(written) - (len(read) - shared)], *given[shared:]]


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many leading ids two sequences have in common."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
