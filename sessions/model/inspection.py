"""Questions about texts that no session answers: how many tokens they are, and what the filters say of them.

Pure vocabulary. `sessions.turn.inspector` answers, in this process or at a replica that has the model.
"""

from __future__ import annotations

import msgspec

from sessions.model.generation import TokenizerInfo
from sessions.model.types import CallId, Json, Role, Tool


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


class TokenTexts(msgspec.Struct, frozen=True, tag="detokenize"):
    """The texts of some sequences of token ids."""

    sequences: tuple[tuple[int, ...], ...]


class AboutTokenizer(msgspec.Struct, frozen=True, tag="about_tokenizer"):
    """What the model's tokenizer is."""


class BarePrompt(msgspec.Struct, frozen=True, tag="score"):
    """How probable each token of a bare prompt is: of a text, or of token ids as they are. `next_too`: also which token
    is most probable behind it, unless filters have to judge what the model writes."""

    prompt: str | tuple[int, ...]
    top: int = 0
    next_too: bool = False


Question = TextTokens | PromptTokens | JudgedTexts | RefusedText | TokenTexts | AboutTokenizer | BarePrompt


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


class DecodedTexts(msgspec.Struct, frozen=True, tag="texts"):
    texts: tuple[str, ...]


class PromptScores(msgspec.Struct, frozen=True, tag="scores"):
    """Entries as in OpenAI's `logprobs`, one for each token of the prompt; the first has no log probability unless
    every prompt begins with something else. `following` is the next token's entry, without text where the answer ends
    there."""

    entries: tuple[Json, ...]
    prompt_tokens: int
    following: Json = None
    ended: bool = False


Answer = TokenIds | Judgements | Refused | DecodedTexts | TokenizerInfo | PromptScores
