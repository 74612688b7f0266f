"""Whether messages are seen by a scanner, one after another, as a prompt's filter judges them."""

from __future__ import annotations

from inference.moderation.input_filter import scan_message
from inference.moderation.scan import Scanner
from sessions.actor.prompt_filter import Neighbours
from sessions.turn.ledger import PromptText


def is_seen(scanner: Scanner, message: str | list[str]) -> bool:
    """Whether a message is seen, or several of them one after another, as a prompt's filter does it."""
    near = Neighbours()
    for text in [message] if isinstance(message, str) else message:
        if scan_message(scanner, text):
            return True
        for before in near.ends(by_model=False):
            joined, _ = before.join(text)
            last, first = len(before.end), len(before.end) + len(before.joint)
            if any(start < last and end > first for _, start, end in scan_message(scanner, joined)):
                return True
        near.add(PromptText(text, False))
    return False
