"""What conversations ask of a cluster: how many are open, how long their turns are, how long people think in between.

From a distribution, or from a trace of conversations, one JSON object a line:
`{"turns": [{"think_s": 4.0, "prompt_tokens": 60, "completion_tokens": 200}, …]}`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean
from typing import Final

import msgspec

QUANTILES: Final = 199
LINES_MAX: Final = 1_000_000


class BadChatDemand(ValueError):
    """Lengths, times or a trace that cannot be planned for; its text says why."""


class ChatDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Of the mean turn; `think_s` is a sample of the times, sorted."""

    sessions: int
    opening: int  # tokens that all sessions begin with: a system prompt, tools
    prompt: float  # new tokens of a turn
    answer: float
    context: float  # that a turn finds, without its new tokens
    context_peak: int  # at the end of a long conversation
    think_s: tuple[float, ...]

    @property
    def mean_think_s(self) -> float:
        return fmean(self.think_s)

    @property
    def private_context(self) -> float:
        """Of a session's tokens, those that no other session holds too."""
        return max(self.context - self.opening, 0.0)


class TurnRecord(msgspec.Struct, frozen=True):
    think_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ConversationRecord(msgspec.Struct, frozen=True):
    turns: tuple[TurnRecord, ...] = ()


def from_distribution(
    *, sessions: int, opening: int, prompt: int, answer: int, turns: int, think_s: float, think_sigma: float
) -> ChatDemand:
    """Every session has so many turns; a session is met at any of them. Think times are log-normal about a median
    (`think_sigma` 0: all alike). Raises BadChatDemand."""
    whole = {"sessions": sessions, "prompt-tokens": prompt, "answer-tokens": answer, "turns": turns}
    for name, value in whole.items():
        if not 1 <= value <= 10**9:
            raise BadChatDemand(f"{name}: {value}, expected 1 to 1,000,000,000")
    if not 0 <= opening <= 10**7:
        raise BadChatDemand(f"opening-tokens: {opening}, expected 0 to 10,000,000")
    if not (math.isfinite(think_s) and 0 <= think_s <= 10**7):
        raise BadChatDemand(f"think-s: {think_s:g}, expected 0 to 10,000,000 seconds")
    if not 0 <= think_sigma <= 3:
        raise BadChatDemand(f"think-sigma: {think_sigma:g}, expected 0 to 3")
    normal = NormalDist()
    ranks = [normal.inv_cdf((index + 1) / (QUANTILES + 1)) for index in range(QUANTILES)]
    grown = prompt + answer
    return ChatDemand(
        sessions=sessions,
        opening=opening,
        prompt=float(prompt),
        answer=float(answer),
        context=opening + grown * (turns - 1) / 2,
        context_peak=opening + grown * turns,
        think_s=tuple(think_s * math.exp(think_sigma * rank) for rank in ranks),
    )


def from_trace(lines: Iterable[bytes], *, sessions: int, opening: int) -> ChatDemand:
    """Raises BadChatDemand with the line that cannot be read."""
    thinks, prompts, answers, contexts, peaks = list[float](), list[int](), list[int](), list[int](), list[int]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number > LINES_MAX:
            raise BadChatDemand(f"trace: more than {LINES_MAX:,} lines: a sample of them says as much")
        try:
            record = msgspec.json.decode(line, type=ConversationRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadChatDemand(f"trace, line {number}: {error}") from error
        context = opening
        for turn in record.turns:
            if turn.think_s < 0 or min(turn.prompt_tokens, turn.completion_tokens) < 1:
                raise BadChatDemand(
                    f"trace, line {number}: each turn needs prompt_tokens and completion_tokens above 0,"
                    " and no think_s below 0"
                )
            thinks.append(turn.think_s)
            prompts.append(turn.prompt_tokens)
            answers.append(turn.completion_tokens)
            contexts.append(context)
            context += turn.prompt_tokens + turn.completion_tokens
        peaks.append(context)
    if not prompts:
        raise BadChatDemand(
            'trace: no turns in it; expected lines like {"turns": [{"think_s": 4, "prompt_tokens": 60, …}]}'
        )
    if not 1 <= sessions <= 10**9:
        raise BadChatDemand(f"sessions: {sessions}, expected 1 to 1,000,000,000")
    return ChatDemand(
        sessions=sessions,
        opening=opening,
        prompt=fmean(prompts),
        answer=fmean(answers),
        context=fmean(contexts),
        context_peak=_quantile(sorted(peaks), 0.95),
        think_s=_thinned(sorted(thinks)),
    )


def _quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _thinned(ordered: Sequence[float]) -> tuple[float, ...]:
    if len(ordered) <= QUANTILES:
        return tuple(ordered)
    return tuple(ordered[int((index + 0.5) * len(ordered) / QUANTILES)] for index in range(QUANTILES))
