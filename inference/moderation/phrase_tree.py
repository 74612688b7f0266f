"""Makes one regular expression of many phrases, as a tree of what they share."""

from __future__ import annotations

import re
from collections.abc import Iterable


def any_of(phrases: Iterable[str]) -> str:
    """Returns a pattern for the longest phrase that begins at a place, built as a tree of shared beginnings."""
    tree: dict[str, dict] = {}  # type: ignore[type-arg]
    for phrase in phrases:
        node = tree
        for character in phrase:
            node = node.setdefault(character, {})
        node[""] = {}
    return _tree_pattern(tree)


def _tree_pattern(node: dict[str, dict]) -> str:  # type: ignore[type-arg]
    """Returns the pattern of a node. Follows single branches in a loop, so that a long phrase is no deep pattern."""
    run = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        run += re.escape(character)
    branches = [re.escape(character) + _tree_pattern(child) for character, child in node.items() if character]
    if not branches:
        return run
    return f"{run}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
