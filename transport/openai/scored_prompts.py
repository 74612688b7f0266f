"""Bare prompts of `/v1/completions` as texts or token ids, and how probable they are.

A prompt whose log probabilities are wanted (`echo` with `logprobs`) is scored by a question, which writes nothing and
begins no session. An answer of no token, or of the one that is most probable, is what the same prefill has said
already: then there is no turn at all. Longer answers are turns like any other, behind the scores of their prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sessions.model.errors import BadInput
from sessions.model.inspection import BarePrompt, DecodedTexts, PromptScores, TextTokens, TokenIds, TokenTexts
from sessions.model.types import SCORES, Json, Principal
from transport.gateway import Gateway
from transport.model_catalog import ModelCard
from transport.openai.completion_models import CompletionRequest
from transport.openai.completions import legacy_logprobs
from transport.openai.unlogged_use import record_unlogged_use

FINGERPRINT: Final = "sessile"
SHOWN_MAX: Final = 500_000  # log probabilities of prompts in one answer: each takes some hundred bytes of memory
PROMPT_IDS: Final = "scor"  # the prefix of usage rows' ids


class Prompt(NamedTuple):
    """One prompt of a completion. `tokens` are its token ids if the client sent ids; None if it sent a text."""

    text: str
    tokens: tuple[int, ...] | None = None

    @property
    def raw(self) -> Json:
        """The prompt as the stored request says it: the token ids, or true for a text."""
        return True if self.tokens is None else list(self.tokens)


async def read_prompts(gateway: Gateway, principal: Principal, model: str, body: CompletionRequest) -> list[Prompt]:
    """Returns the prompts of a request, token ids decoded to text. Raises BadInput for unknown ids."""
    match body.prompt:
        case str(text):
            return [Prompt(text)]
        case [str(), *_] as texts:
            return [Prompt(str(text)) for text in texts]
        case [int(), *_] as tokens:
            sequences: tuple[tuple[int, ...], ...] = (tuple(tokens),)  # type: ignore[arg-type]
        case lists:
            sequences = tuple(tuple(each) for each in lists)  # type: ignore[arg-type]
    decoded = await gateway.inspect(principal, model, TokenTexts(sequences))
    assert isinstance(decoded, DecodedTexts)
    return [Prompt(text, tokens) for text, tokens in zip(decoded.texts, sequences, strict=True)]


def needs_no_turn(body: CompletionRequest, scores: Sequence[PromptScores], *, retryable: bool) -> bool:
    """Returns whether the prompts' scores are already the whole answer: no token is wanted, or only the most probable
    next one. `retryable`: the request has an idempotency key, so its answer must be in a log."""
    if body.max_tokens == 0:
        return True
    plain = (body.temperature == 0, not body.stop, not body.logit_bias, not body.stop_token_ids, not body.min_tokens)
    even = not any((body.frequency_penalty, body.presence_penalty, body.repeat_penalty, body.repetition_penalty))
    one = body.max_tokens == 1 and (body.n or 1) == 1 and not body.ignore_eos
    one = one and all(each.following is not None for each in scores)
    return one and not retryable and all(plain) and even


async def read_scores(
    gateway: Gateway, principal: Principal, model: str, body: CompletionRequest, prompts: Sequence[Prompt]
) -> list[PromptScores]:
    """Returns the scores that are needed before an answer; an empty list if none are. Raises as `score` does, and
    BadInput for more log probabilities than one answer may show."""
    if not body.echo or body.logprobs is None:
        return [await count(gateway, principal, model, each) for each in prompts] if body.max_tokens == 0 else []
    scores: list[PromptScores] = []
    _check_shown(body, sum(len(each.tokens or ()) for each in prompts))
    for prompt in prompts:
        scores.append(await score(gateway, principal, model, body, prompt))
        _check_shown(body, sum(len(each.entries) for each in scores))
    return scores


def _check_shown(body: CompletionRequest, tokens: int) -> None:
    if tokens * (1 + (body.logprobs or 0)) * (body.n or 1) > SHOWN_MAX:
        message = f"An answer shows at most {SHOWN_MAX} log probabilities of prompts: ask for fewer, or send less."
        raise BadInput("invalid_request", message, param="logprobs")


async def score(
    gateway: Gateway, principal: Principal, model: str, body: CompletionRequest, prompt: Prompt
) -> PromptScores:
    """Returns the log probabilities of a prompt's tokens, and records their usage. Raises BadInput if the engine cannot
    score or a filter refuses the prompt; Limited."""
    given: str | tuple[int, ...] = prompt.text if prompt.tokens is None else prompt.tokens
    scores = await gateway.inspect(
        principal, model, BarePrompt(given, body.logprobs or 0, next_too=body.max_tokens == 1)
    )
    assert isinstance(scores, PromptScores)
    await record_unlogged_use(gateway, principal, model, scores.prompt_tokens, place=SCORES, prefix=PROMPT_IDS)
    return scores


async def count(gateway: Gateway, principal: Principal, model: str, prompt: Prompt) -> PromptScores:
    """Returns a prompt's number of tokens without log probabilities; the model computes nothing."""
    if prompt.tokens is not None:
        return PromptScores((), len(prompt.tokens))
    token_ids = await gateway.inspect(principal, model, TextTokens(prompt.text, starts=True))
    assert isinstance(token_ids, TokenIds)
    return PromptScores((), len(token_ids.tokens))


def scored_completion(
    gateway: Gateway,
    model: ModelCard,
    body: CompletionRequest,
    prompts: Sequence[Prompt],
    scores: Sequence[PromptScores],
) -> dict[str, Json]:
    """Returns the `text_completion` object of a request that the prompts' scores answer completely."""
    choices: list[Json] = []
    written = 0
    for number, (prompt, scored) in enumerate(zip(prompts, scores, strict=True)):
        following: Any = scored.following
        entries: list[Any] = [*(scored.entries if body.echo else ()), *([following] if following else ())]
        written += following is not None
        text = (prompt.text if body.echo else "") + (following["token"] if following else "")
        logprobs = None if body.logprobs is None else legacy_logprobs(entries, 0)
        reason = "stop" if scored.ended else "length"
        choices += [
            {"index": number * (body.n or 1) + choice, "text": text, "logprobs": logprobs, "finish_reason": reason}
            for choice in range(body.n or 1)
        ]
    read = sum(each.prompt_tokens for each in scores)
    return {
        "id": f"cmpl-{gateway.new_id()}",
        "object": "text_completion",
        "created": gateway.now_ms() // 1000,
        "model": model.id,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
