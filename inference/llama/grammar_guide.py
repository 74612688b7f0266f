"""Says which tokens may follow in an answer in a fixed format that llama-server does not keep.

llama-server makes a grammar anew for each run and cannot take one to the middle of an answer. So for an answer that is
continued the grammar is kept here, by the engine that llama.cpp itself has for JSON schemas (llguidance): the released
tokens go through it as ids, about a microsecond each, and `GuidedCompletion` has every further one chosen among those
that fit. With most models an answer that does not fail never comes here; with some llama-server keeps no format right
(`LlamaEngine._has_grammars`), and beside a second model it keeps that of one of the two (`grammar_cache`).

The vocabulary is read from the model file with the first guide, in a thread, as all that takes longer than a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from inference.llama.gguf import read_model
from inference.llama.sampling import SHOWN_TOKENS
from inference.llama.vocabulary import END_TOKENS, token_pieces
from inference.sampling import unfit_continuation
from inference.tokens import Utf8Stream
from sessions.model.errors import BadInput
from sessions.model.types import Json, Tokens

LIFT: Final = 200.0  # far more than logits differ by, and little enough that they keep their digits
_HEAD: Final = '%llguidance {"no_forcing": true}\nstart: %json '  # forced text would be tokenised; here it never is
_CHARACTER_TOKENS: Final = 4  # within so many tokens the last character began
_ALLOWED: Final = 200  # the mark of allowed tokens in llguidance's table, which has a byte for each token


class GuideVocabulary(NamedTuple):
    """A model's tokens in the form that a grammar needs."""

    pieces: Sequence[bytes]
    tokenizer: LLTokenizer
    specials: dict[str, int]  # control tokens by their spelling, which `pieces` leaves out


class GrammarGuide:
    """The grammar of one answer, as far as the answer is written. For each token the caller gets `biases`, then passes
    the chosen token to `accept`."""

    def __init__(
        self,
        vocabulary: GuideVocabulary,
        matcher: LLMatcher,
        given: Sequence[Sequence[Json]] = (),
        *,
        emitted: Sequence[int] = (),
        lifts: bool = True,
    ) -> None:
        """`given`: the request's own biases, as pairs of token and bias; False as a bias bans the token. `emitted`: the
        tokens that the matcher has already taken. `lifts`: whether allowed tokens may get a high bias; otherwise all
        others are banned, because a penalty that divides would distort such a bias."""
        self._pieces = vocabulary.pieces
        self.vocabulary_size: Final = len(self._pieces)
        self._matcher = matcher
        self._banned = [token for token, bias in given if bias is False]
        self._given = {token: bias for token, bias in given if bias is not False}
        self._lifts = lifts
        self._utf8 = Utf8Stream(self._pieces[token] for token in emitted[-_CHARACTER_TOKENS:])

    @property
    def complete(self) -> bool:
        """Whether the answer is complete, so that no token can follow."""
        return bool(self._matcher.is_stopped() and not self._matcher.is_error())

    def biases(self) -> list[list[Json]]:
        """Returns `logit_bias` for the next token: those that fit are lifted above all others, or the others are
        banned, whichever are fewer. Blocking: these may be half of the vocabulary."""
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8) == _ALLOWED
        if self._matcher.is_error():
            raise unfit_continuation()
        kept = allowed.copy()
        kept[self._banned] = False
        if kept.any():  # a ban of all that fits would leave the choice to what does not
            allowed = kept
        if self._lifts and 2 * np.count_nonzero(allowed) <= len(allowed):
            return [[token, LIFT + self._given.get(token, 0.0)] for token in np.flatnonzero(allowed).tolist()]
        banned: list[list[Json]] = [[token, False] for token in np.flatnonzero(~allowed).tolist()]
        return banned + [[token, bias] for token, bias in self._given.items() if allowed[token]]

    def accept(self, token: int) -> str:
        """Takes a chosen token; returns the text that it completes. Raises BadInput for one that does not fit."""
        if not self._matcher.consume_token(token):
            raise unfit_continuation()
        return self._utf8.feed(self._pieces[token])


class FreeGuide:
    """A guide that lets every token follow: for an answer without a format that is written one token a request."""

    complete: Final = False

    def __init__(
        self,
        vocabulary: GuideVocabulary,
        given: Sequence[Sequence[Json]] = (),
        *,
        emitted: Sequence[int] = (),
        shown: Sequence[str] = (),
    ) -> None:
        """`given`: the biases of tokens that each request has. `emitted`: the tokens of the answer so far. `shown`:
        control tokens that the answer shows as text."""
        self._shown = {vocabulary.specials[each]: each.encode() for each in shown if each in vocabulary.specials}
        self._pieces = vocabulary.pieces
        self.vocabulary_size: Final = len(self._pieces)
        self._given = [list(each) for each in given]
        self._utf8 = Utf8Stream(self._pieces[token] for token in emitted[-_CHARACTER_TOKENS:])

    def biases(self) -> list[list[Json]]:
        return self._given

    def accept(self, token: int) -> str:
        return self._utf8.feed(self._shown.get(token, self._pieces[token]))


Guide = GrammarGuide | FreeGuide


class GrammarGuides:
    """Makes the guides of one model's answers."""

    def __init__(self, model_path: Path) -> None:
        self._model_path = model_path
        self._loading: asyncio.Task[GuideVocabulary] | None = None

    async def guide(self, parameters: dict[str, Json], emitted: Tokens) -> Guide:
        """Makes the guide of an answer that has `emitted` tokens and goes on with `parameters`. Raises BadInput
        `invalid_schema`, and `recovery_incompatible` where these tokens do not fit the schema."""
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            self._loading = asyncio.create_task(asyncio.to_thread(load_vocabulary, self._model_path))
        vocabulary = await asyncio.shield(self._loading)
        if "json_schema" not in parameters:
            shown = parameters.get(SHOWN_TOKENS, ())
            return FreeGuide(vocabulary, parameters.get("logit_bias", ()), emitted=list(emitted), shown=shown)
        return await asyncio.to_thread(make_guide, vocabulary, parameters, list(emitted))


def load_vocabulary(model_path: Path) -> GuideVocabulary:
    """Reads a model file's vocabulary. Blocking, for a quarter of a second with 50,000 tokens."""
    return make_vocabulary(read_model(model_path).metadata)


def make_vocabulary(metadata: dict[str, Any]) -> GuideVocabulary:
    """Makes the vocabulary from a model file's metadata. Blocking."""
    pieces = token_pieces(metadata)
    ends = [metadata[name] for name in END_TOKENS if name in metadata] or [0]
    tokenizer = LLTokenizer(TokenizerWrapper(_Pieces(pieces.spelled, ends[0])), eos_token=ends)
    controls = (
        (piece[1:].decode(errors="replace"), token) for token, piece in enumerate(pieces.spelled) if _is_control(piece)
    )
    return GuideVocabulary(pieces.text, tokenizer, dict(controls))


def _is_control(piece: bytes) -> bool:
    return len(piece) > 1 and piece.startswith(b"\xff")


def make_guide(vocabulary: GuideVocabulary, parameters: dict[str, Json], emitted: list[int]) -> GrammarGuide:
    """Makes a guide. Blocking: a schema takes up to a second, released tokens a microsecond each. Raises BadInput as
    `GrammarGuides.guide`."""
    matcher = LLMatcher(vocabulary.tokenizer, _HEAD + msgspec.json.encode(parameters["json_schema"]).decode())
    if matcher.is_error():
        raise BadInput(
            "invalid_schema",
            "The format's JSON schema is invalid, or uses something that this engine does not support.",
            param="text.format",
        )
    if matcher.try_consume_tokens(emitted) != len(emitted):
        raise unfit_continuation()
    lifts = parameters.get("repeat_penalty", 1.0) == 1.0
    return GrammarGuide(vocabulary, matcher, parameters.get("logit_bias", ()), emitted=emitted, lifts=lifts)


class _Pieces:
    """A vocabulary in llguidance's form. It cannot encode: llama.cpp does that."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id

    def __call__(self, text: bytes) -> list[int]:
        return []
