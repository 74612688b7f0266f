"""Decides on which model a session's next turn runs: what a scorer proposes, and what switching costs.

    score of the turn ─► proposal (the hysteresis around `hard`) ─► worth what is computed anew? ─► stay, or switch

Invariants: never inside an answer or a tool loop; a switch up is made at once where it is worth it, one down only after
`calm_turns` easy turns; what a switch may cost grows with how long the session has been as it is (`level`, a smoothed
score). Where nothing is lost, because the KV is gone or the session is new, the proposal is followed. A pool that is
lost or full is left by the same way, and come back to by it.

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
    """A model that a session may run on, as its pool is now. `kept`: tokens of the conversation whose KV the pool
    has."""

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
    """A session before a turn. `level` None: no turn of it was routed yet."""

    current: str
    score: float
    prompt_tokens: int
    in_turn: bool = False
    level: float | None = None
    calm: int = 0
    displaced: bool = False  # whether a lost or full pool sent it to a lower model


class RoutingDecision(NamedTuple):
    """The model for a turn, and why. `tokens` are computed anew because of a switch, which takes `seconds`."""

    model: str
    why: Why
    score: float
    level: float
    calm: int
    tokens: int = 0
    seconds: float = 0.0


def proposed_index(value: float, count: int, hard: float) -> int:
    """Returns the index, among `count` models in order of quality, of the one that a score calls for; 0 is the
    worst."""
    bounds = (hard + (1 - hard) * index / max(1, count - 1) for index in range(count - 1))
    return sum(value >= bound for bound in bounds)


def decide(
    situation: TurnSituation, candidates: Sequence[CandidateModel], rules: RoutingRules
) -> RoutingDecision | None:
    """Decides the model of a turn. `candidates` are in order of quality, the worst first. None: none can take the
    turn."""
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
    """Decides for a session whose present model can go on."""
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
    """Returns how many tokens of the prompt `target` must compute that `now` need not."""
    return max(0, _missing(situation, target) - _missing(situation, now))


def _missing(situation: TurnSituation, model: CandidateModel) -> int:
    return situation.prompt_tokens - min(model.kept, situation.prompt_tokens)


def prefill_s(situation: TurnSituation, model: CandidateModel) -> float:
    """Returns the seconds until a model could begin its answer if it had nothing else to do."""
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
    """Returns the candidate at `index`, or else the nearest one whose pool has room, those below first."""
    order = [*range(index, -1, -1), *range(index + 1, len(usable))]
    return usable[next((at for at in order if usable[at].load < rules.full), index)]
