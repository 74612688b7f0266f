"""Questions about texts that no session answers: how many tokens they are, and what the filters say of them.

Pure vocabulary. `sessions.turn.inspector` answers, in this process or at a replica that has the model.
"""

from __future__ import annotations

import msgspec

from sessions.model.types import CallId, Role, Tool


class TextTokens(msgspec.Struct, frozen=True, tag="text"):
    """The ids of a text alone; `starts`: with what every prompt of the model begins with."""

    text: str
    starts: bool = False


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a chat template renders it."""

    role: Role
    text: str
    name: str | None = None
    call_id: CallId | None = None
    calls: tuple[tuple[CallId, str, str], ...] = ()


class PromptTokens(msgspec.Struct, frozen=True, tag="prompt", kw_only=True):
    """The ids of a whole prompt; `answer`: up to where the answer begins."""

    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    messages: tuple[PromptMessage, ...] = ()
    answer: bool = True


class JudgedTexts(msgspec.Struct, frozen=True, tag="judge"):
    """What the principal's policy for messages finds in each of these texts."""

    texts: tuple[str, ...]


class RefusedText(msgspec.Struct, frozen=True, tag="refused"):
    """Whether the principal's filters of messages refuse a text."""

    text: str


Question = TextTokens | PromptTokens | JudgedTexts | RefusedText


class TokenIds(msgspec.Struct, frozen=True, tag="tokens"):
    tokens: tuple[int, ...]
    context_window: int


class Judgement(msgspec.Struct, frozen=True):
    """The scores of what was found in a text, by category; nothing is found below the policy's thresholds."""

    scores: dict[str, float]


class Judgements(msgspec.Struct, frozen=True, tag="judgements"):
    """One for each text, and by what: the names and versions of detectors that found something."""

    texts: tuple[Judgement, ...]
    detectors: tuple[str, ...] = ()


class Refused(msgspec.Struct, frozen=True, tag="refusal"):
    """`message`: what its sender is shown; None: it is let in."""

    message: str | None


Answer = TokenIds | Judgements | Refused
