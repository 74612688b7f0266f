"""Decides on which model a session's next turn runs: what a scorer proposes, and what switching costs.

    score of the turn ─► proposal (the hysteresis around `hard`) ─► worth what is computed anew? ─► stay, or switch

Invariants: a session never switches inside an answer or a tool loop. It switches to a better model at once if that is
worth the cost, to a worse one only after `calm_turns` easy turns. What a switch may cost grows with how hard, or easy,
the session has been for some time (`level`, a smoothed score). If a switch costs nothing, because the KV is gone or the
session is new, the proposal is followed. A session leaves a pool that is lost or full in the same way, and returns to
it so.

What a switch costs is the tokens that the target must compute and the present model need not; KV that comes back from
memory or disk counts by the time it takes. The first turn leans to the better model: to go up later costs the whole
conversation. Pure.

Source: the switching costs of "Ski rental" (Karlin et al., 1994): pay for a switch when staying has cost about as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from sessions.routing.models_file import RoutingRules

Why = Literal[
    "first_turn", "steady", "in_turn", "not_worth_it", "hysteresis", "hard", "calm", "free", "brownout", "full",
    "pool_lost", "unfit", "not_allowed", "no_replica",
]  # fmt: skip

ANSWER_MIN: Final = 64  # tokens of the window that an answer needs at least
DOWN_SHARE: Final = 0.5  # of `worth_tokens`: going down saves money, going up an answer


class CandidateModel(NamedTuple):
    """A model that a session may run on, in the present state of its pool. `kept` is for how many tokens of the
    conversation the pool has KV."""

    name: str
    quality: int
    live: bool = True
    load: float = 0.0
    window: int = 1 << 30
    able: bool = True  # whether it has what the turn needs: tools, JSON
    kept: int = 0
    on_device: bool = True  # else the KV is brought back to the device first
    prefill_per_s: float = 1_000.0
    restore_per_s: float = 50_000.0


class TurnSituation(NamedTuple):
    """The facts that routing considers before a turn: its model, the turn's `score`, the prompt's length, whether a
    turn is open, and the smoothed score (`level`; None if none of its turns was routed) with the number of easy turns
    in a row (`calm`)."""

    current: str
    score: float
    prompt_tokens: int
    in_turn: bool = False
    level: float | None = None
    calm: int = 0
    displaced: bool = False  # whether a lost or full pool sent it to a lower model


class RoutingDecision(NamedTuple):
    """The model for a turn, and why. `tokens` is how many tokens a switch makes the model compute again, `seconds` how
    long that takes; `level` and `calm` are for the session's next decision."""

    model: str
    why: Why
    score: float
    level: float
    calm: int
    tokens: int = 0
    seconds: float = 0.0


def proposed_index(value: float, count: int, hard: float) -> int:
    """Returns the index, among `count` models in order of quality (0 is the worst), of the model that a score calls
    for. From the score `hard` on it is the best."""
    bounds = (hard + (1 - hard) * index / max(1, count - 1) for index in range(count - 1))
    return sum(value >= bound for bound in bounds)


def decide(
    situation: TurnSituation, candidates: Sequence[CandidateModel], rules: RoutingRules
) -> RoutingDecision | None:
    """Decides the model of a turn; returns None if no candidate can take it. `candidates` are in order of quality, the
    worst first."""
    score = situation.score
    before = score if situation.level is None else situation.level
    level = rules.smoothing * score + (1 - rules.smoothing) * before
    if situation.in_turn:
        return RoutingDecision(situation.current, "in_turn", score, before, situation.calm)
    able = [model for model in candidates if model.able and model.window >= situation.prompt_tokens + ANSWER_MIN]
    usable = [model for model in able if model.live]
    if not usable:
        return None
    names = [model.name for model in usable]
    if situation.current not in names:
        listed = {model.name: model for model in candidates}
        now = listed.get(situation.current)
        first = situation.level is None and (now is None or now.live)
        value = max(score, level) + (rules.margin if first else 0.0)
        chosen = _roomy(usable, proposed_index(value, len(usable), rules.hard), rules)
        why: Why = "first_turn" if first else "not_allowed" if now is None else "unfit" if now.live else "pool_lost"
        return _switch(situation, chosen, None, why, level)
    at = names.index(situation.current)
    return _between(situation, usable, at, level, rules)


def _between(
    situation: TurnSituation, usable: list[CandidateModel], at: int, level: float, rules: RoutingRules
) -> RoutingDecision:
    """Decides for a session whose present model, the one at index `at`, can go on."""
    score, count, now = situation.score, len(usable), usable[at]
    easy = proposed_index(score, count, rules.hard) < at
    calm = situation.calm + 1 if easy else 0

    def stay(why: Why) -> RoutingDecision:
        return RoutingDecision(now.name, why, score, level, calm)

    if now.load >= rules.full:
        below = [model for model in usable[:at] if model.load < rules.full]
        if below and extra_tokens(situation, now, below[-1]) <= rules.worth_tokens:
            return _switch(situation, below[-1], now, "brownout", level)
    new = situation.level is None
    value = max(score, level) if situation.displaced else score
    bar = -rules.margin if new else 0.0 if situation.displaced else rules.margin
    target = proposed_index(value - bar, count, rules.hard)
    if target > at:
        chosen = _roomy(usable, target, rules)
        if usable.index(chosen) <= at:
            return stay("full")
        extra = extra_tokens(situation, now, chosen)
        if not extra:
            return _switch(situation, chosen, now, "first_turn" if new else "free", level)
        strength = (level - rules.hard + rules.margin) / (1 - rules.hard + rules.margin)
        worth = rules.worth_tokens * max(0.0, strength)
        return _switch(situation, chosen, now, "hard", level) if extra <= worth else stay("not_worth_it")
    target = proposed_index(max(score, level) + rules.margin, count, rules.hard)
    if target < at:
        chosen = usable[target]
        extra = extra_tokens(situation, now, chosen)
        if chosen.load > rules.free:
            return stay("full")
        if not extra:
            return _switch(situation, chosen, now, "first_turn" if new else "free", level)
        if calm < rules.calm_turns:
            return stay("hysteresis")
        strength = (rules.hard - level) / max(rules.hard, 1e-9)
        worth = DOWN_SHARE * rules.worth_tokens * max(0.0, strength)
        return _switch(situation, chosen, now, "calm", level) if extra <= worth else stay("not_worth_it")
    return stay("first_turn" if new else "steady")


def extra_tokens(situation: TurnSituation, now: CandidateModel, target: CandidateModel) -> int:
    """Returns how many tokens of the prompt the model `target` must compute that the model `now` need not; at least
    0."""
    return max(0, _missing(situation, target) - _missing(situation, now))


def _missing(situation: TurnSituation, model: CandidateModel) -> int:
    return situation.prompt_tokens - min(model.kept, situation.prompt_tokens)


def prefill_s(situation: TurnSituation, model: CandidateModel) -> float:
    """Returns the number of seconds that a model needs until it can begin its answer, if it has nothing else to do."""
    kept = min(model.kept, situation.prompt_tokens)
    restored = 0.0 if model.on_device else kept / model.restore_per_s
    return _missing(situation, model) / model.prefill_per_s + restored


def _switch(
    situation: TurnSituation, chosen: CandidateModel, now: CandidateModel | None, why: Why, level: float
) -> RoutingDecision:
    if now is None:
        tokens = 0 if why == "first_turn" else _missing(situation, chosen)
        return RoutingDecision(chosen.name, why, situation.score, level, 0, tokens, prefill_s(situation, chosen))
    extra_s = prefill_s(situation, chosen) - prefill_s(situation, now)
    tokens = extra_tokens(situation, now, chosen)
    return RoutingDecision(chosen.name, why, situation.score, level, 0, tokens, extra_s)


def _roomy(usable: list[CandidateModel], index: int, rules: RoutingRules) -> CandidateModel:
    """Returns the candidate at `index` if its pool has room, else the nearest one with room, those below first; if none
    has room, the one at `index`."""
    order = [*range(index, -1, -1), *range(index + 1, len(usable))]
    return usable[next((at for at in order if usable[at].load < rules.full), index)]
