"""Questions about texts that need no session: how many tokens they have, and what the filters find in them.

Pure vocabulary. `sessions.turn.inspector` answers, in this process or at a replica that has the model.
"""

from __future__ import annotations

import msgspec

from sessions.model.generation import TokenizerInfo
from sessions.model.types import CallId, Json, Role, Tool


class TextTokens(msgspec.Struct, frozen=True, tag="text"):
    """Asks for the token ids of a text alone; with `starts` also those that every prompt of the model begins with."""

    text: str
    starts: bool = False


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a chat template gets it."""

    role: Role
    text: str
    name: str | None = None
    call_id: CallId | None = None
    calls: tuple[tuple[CallId, str, str], ...] = ()
    names_images: bool = False  # as in `ports.ChatMessage`


class PromptTokens(msgspec.Struct, frozen=True, tag="prompt", kw_only=True):
    """Asks for the token ids of a whole prompt; with `answer` also those that begin the answer."""

    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    messages: tuple[PromptMessage, ...] = ()
    answer: bool = True


class JudgedTexts(msgspec.Struct, frozen=True, tag="judge"):
    """Asks what the principal's policy for messages finds in each of these texts."""

    texts: tuple[str, ...]


class RefusedText(msgspec.Struct, frozen=True, tag="refused"):
    """Asks whether the principal's input filters refuse a text."""

    text: str


class TokenTexts(msgspec.Struct, frozen=True, tag="detokenize"):
    """Asks for the texts of sequences of token ids."""

    sequences: tuple[tuple[int, ...], ...]


class AboutTokenizer(msgspec.Struct, frozen=True, tag="about_tokenizer"):
    """Asks for the properties of the model's tokenizer."""


class BarePrompt(msgspec.Struct, frozen=True, tag="score"):
    """Asks how probable each token of a bare prompt (a text, or token ids) is. With `next_too` it also asks which token
    is most probable behind the prompt; that is not answered if filters must judge what the model writes."""

    prompt: str | tuple[int, ...]
    top: int = 0
    next_too: bool = False


Question = TextTokens | PromptTokens | JudgedTexts | RefusedText | TokenTexts | AboutTokenizer | BarePrompt


class TokenIds(msgspec.Struct, frozen=True, tag="tokens"):
    tokens: tuple[int, ...]
    context_window: int


class Judgement(msgspec.Struct, frozen=True):
    """The findings in one text: scores by category, only those at or above the policy's thresholds."""

    scores: dict[str, float]


class Judgements(msgspec.Struct, frozen=True, tag="judgements"):
    """One judgement for each text, and the names and versions of the detectors that found something."""

    texts: tuple[Judgement, ...]
    detectors: tuple[str, ...] = ()


class Refused(msgspec.Struct, frozen=True, tag="refusal"):
    """The answer to `RefusedText`: the message that the sender sees; None if the text is let in."""

    message: str | None


class DecodedTexts(msgspec.Struct, frozen=True, tag="texts"):
    texts: tuple[str, ...]


class PromptScores(msgspec.Struct, frozen=True, tag="scores"):
    """Entries as in OpenAI's `logprobs`, one for each token of the prompt. The first has no log probability, unless
    every prompt of the model begins with another token. `following` is the entry of the next token; it has no text if
    the answer would end there."""

    entries: tuple[Json, ...]
    prompt_tokens: int
    following: Json = None
    ended: bool = False


Answer = TokenIds | Judgements | Refused | DecodedTexts | TokenizerInfo | PromptScores
