"""Which model sessions' turns run on: the session's decision against a router that decides turn by turn.

    python -m bench.cluster.model_routing --trace PATH [--sessions 10000] [--seed 1]

No engine: the product's scorer and decision over made-up sessions, of two models, in made-up time. Of the trace (one
JSON object a line, as Mooncake's: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`) come the lengths of
first messages, what later turns add, how long answers are, and the time between a turn and the next; conversations are
its requests whose blocks go on from another's. Each session is easy, mixed or hard for most of the time, its messages
are put together from phrases, and a part of the hard ones looks easy and the other way round: the scorer errs. Three
turns in ten call tools, one to three times. KV of a model is there for `kept_s` after its last use.

The other router sees the same scores, follows each, and has the threshold with which as large a share of the hard
turns is on the large model. It decides at the beginning of turns only: what it would do inside tool loops is not
counted against it. Bars: no switch inside a tool loop or an answer; at most 25% of the other router's switches; at most
2% of all prompt tokens computed because of switches; decision p99 at most 2 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.support import is_faultless, report, run_bench, spread
from sessions.routing.decision import CandidateModel, RoutingDecision, TurnSituation, decide
from sessions.routing.models_file import RoutingRules
from sessions.routing.scorer import score_turn

SWITCHES_MAX = 0.25
TOKENS_MAX = 0.02
DECISION_MS = 2.0
TOOL_SHARE = 0.3
TOOL_TOKENS = 160
TOOL_S = 2.0
DISGUISED = 0.15  # hard turns that look easy, and the other way round

# How likely a turn is hard in a session of each kind, and how common the kind is.
KINDS = ((0.60, 0.04), (0.25, 0.35), (0.15, 0.90))

EASY = (
    "Thanks! And what should I cook tonight?",
    "Can you make that a little shorter, please?",
    "What is the capital of Peru?",
    "Write a friendly note to my landlord about the heating.",
    "Which of the two would you take on a rainy day?",
    "Please translate it into simple English.",
    "Tell me a little more about the second one.",
)
HARD = (
    "Refactor this so that it is safe under concurrency:\n```python\ndef take(queue):\n    return queue.pop()\n```",
    "Prove step by step that the algorithm ends, and derive its complexity.",
    "Traceback (most recent call last):\n  File \"a.py\", line 3\nKeyError: 'x'\nDebug it and explain why it happens.",
    "Compare the two designs and analyse the trade-offs for 10^6 users, then optimize the query:\nSELECT * FROM a;",
    "Implement the integral ∫ x^2 e^x and evaluate it: class Solver {\n  run(a, b) {\n  }\n}",
)
FILL = "It is about the plan that we made last week and what came of it since then. "


class TraceFigures(NamedTuple):
    """What is drawn from: first prompts, and of later turns what they add, the answer before, and the time between."""

    first: list[int]
    later: list[tuple[int, int, float]]


class SimulatedTurn(NamedTuple):
    text: str
    hard: bool
    new_tokens: int
    answer_tokens: int
    pause_s: float
    tool_rounds: int


class SimulatedKV:
    """What the models of one session still have of it."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._held: dict[str, tuple[int, float]] = {}

    def tokens(self, model: str, now: float) -> int:
        tokens, used_at = self._held.get(model, (0, 0.0))
        return tokens if now - used_at <= self._kept_s else 0

    def used(self, model: str, tokens: int, now: float) -> None:
        self._held[model] = (tokens, now)


class RoutingTally(NamedTuple):
    switches: int
    hard_on_large: int
    on_large: int
    extra_tokens: int


def figures_of(path: str) -> TraceFigures:
    """Of a trace; without one, figures like those of chats."""
    if not path:
        rng = random.Random(0)
        later = [
            (int(rng.lognormvariate(5.5, 1)), rng.randint(20, 700), rng.lognormvariate(4.5, 1)) for _ in range(4096)
        ]
        return TraceFigures([int(rng.lognormvariate(7.5, 1)) for _ in range(4096)], later)
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    figures, ends = TraceFigures([], []), dict[tuple[int, ...], int]()
    for index, row in enumerate(rows):
        blocks = tuple(row["hash_ids"])
        cuts = (ends.get(blocks[:length]) for length in range(len(blocks) - 1, 1, -1))
        before = next((rows[found] for found in cuts if found is not None), None)
        if before is None:
            figures.first.append(row["input_length"])
        else:
            added = max(16, row["input_length"] - before["input_length"] - before["output_length"])
            pause_s = (row["timestamp"] - before["timestamp"]) / 1000
            figures.later.append((added, before["output_length"], pause_s))
        for end in (blocks, blocks[:-1]):
            if len(end) > 1:
                ends[end] = index
    return figures


def turns_of(figures: TraceFigures, mean_turns: float, rng: random.Random) -> Iterator[SimulatedTurn]:
    """One session: at least two turns."""
    kind = rng.choices(range(len(KINDS)), [share for share, _ in KINDS])[0]
    count = 2
    while rng.random() > 1 / max(1.0, mean_turns - 1):
        count += 1
    for number in range(count):
        added, answer, pause_s = rng.choice(figures.later)
        hard = rng.random() < KINDS[kind][1]
        looks_hard = hard != (rng.random() < DISGUISED)
        text = rng.choice(HARD if looks_hard else EASY) + FILL * rng.randint(0, 12 if looks_hard else 3)
        rounds = rng.randint(1, 3) if rng.random() < TOOL_SHARE else 0
        yield SimulatedTurn(text, hard, rng.choice(figures.first) if number == 0 else added, answer, pause_s, rounds)


def score_of(turn: SimulatedTurn) -> float:
    return score_turn(turn.text, tools=1 if turn.tool_rounds else 0).value


class SessionRouted:
    """The product's decision, session by session."""

    def __init__(self, rules: RoutingRules) -> None:
        self.rules = rules
        self.faults: list[str] = []
        self.decisions_ms: list[float] = []
        self.inside = 0  # decisions inside answers and tool loops, none of which may switch
        self.whys: dict[str, int] = {}

    def run(self, turns: list[SimulatedTurn]) -> tuple[RoutingTally, int, int]:
        """Also the prompt tokens, and how many of them were computed."""
        kv, now, current, prompt = SimulatedKV(self.rules.kept_s), 0.0, "", 0
        level: float | None = None
        calm = switches = hard_on_large = on_large = extra = prompts = computed = 0
        for turn in turns:
            now += turn.pause_s if current else 0.0
            prompt += turn.new_tokens
            begun = time.perf_counter()
            score = score_of(turn)
            candidates = self._candidates(kv, now)
            decided = decide(TurnSituation(current, score, prompt, level=level, calm=calm), candidates, self.rules)
            self.decisions_ms.append(1000 * (time.perf_counter() - begun))
            assert decided is not None
            if current and decided.model != current:
                switches += 1
                extra += decided.tokens
                self.whys[decided.why] = self.whys.get(decided.why, 0) + 1
            current, level, calm = decided.model, decided.level, decided.calm
            hard_on_large += turn.hard and current == "large"
            on_large += current == "large"
            prompts += prompt
            computed += prompt - min(prompt, kv.tokens(current, now))
            prompt += turn.answer_tokens
            kv.used(current, prompt, now)
            for _ in range(turn.tool_rounds):
                now += TOOL_S
                prompt += TOOL_TOKENS
                situation = TurnSituation(current, 1.0 - score, prompt, in_turn=True, level=level, calm=calm)
                inside = decide(situation, self._candidates(kv, now), self.rules)
                self._check(inside, current)
                prompts, computed = prompts + prompt, computed + TOOL_TOKENS
                prompt += TOOL_TOKENS
                kv.used(current, prompt, now)
        return RoutingTally(switches, hard_on_large, on_large, extra), prompts, computed

    def _candidates(self, kv: SimulatedKV, now: float) -> list[CandidateModel]:
        return [
            CandidateModel("small", 1, kept=kv.tokens("small", now), prefill_per_s=8_000.0),
            CandidateModel("large", 2, kept=kv.tokens("large", now), prefill_per_s=1_500.0),
        ]

    def _check(self, inside: RoutingDecision | None, current: str) -> None:
        self.inside += 1
        if inside is None or inside.model != current:
            self.faults.append(f"a switch inside a tool loop: {inside}")


def run_by_turn(turns: list[SimulatedTurn], threshold: float, kept_s: float) -> RoutingTally:
    """The other router: each turn goes where its score says."""
    kv, now, current, prompt = SimulatedKV(kept_s), 0.0, "", 0
    switches = hard_on_large = on_large = extra = 0
    for turn in turns:
        now += turn.pause_s if current else 0.0
        prompt += turn.new_tokens
        model = "large" if score_of(turn) >= threshold else "small"
        if current and model != current:
            switches += 1
            missing = prompt - min(prompt, kv.tokens(model, now))
            extra += max(0, missing - (prompt - min(prompt, kv.tokens(current, now))))
        current = model
        hard_on_large += turn.hard and model == "large"
        on_large += model == "large"
        prompt += turn.answer_tokens + 2 * TOOL_TOKENS * turn.tool_rounds
        now += TOOL_S * turn.tool_rounds
        kv.used(current, prompt, now)
    return RoutingTally(switches, hard_on_large, on_large, extra)


def added(tallies: list[RoutingTally]) -> RoutingTally:
    return RoutingTally(*(sum(column) for column in zip(*tallies, strict=True)))


def threshold_for(sessions: list[list[SimulatedTurn]], share: float) -> float:
    """The highest one at which so large a share of the hard turns scores at least as much."""
    scores = sorted((score_of(turn) for turns in sessions for turn in turns if turn.hard), reverse=True)
    return scores[min(len(scores) - 1, max(0, round(share * len(scores)) - 1))]


def main(arguments: argparse.Namespace) -> bool:
    rng, rules = random.Random(arguments.seed), RoutingRules()
    figures = figures_of(arguments.trace)
    sessions = [list(turns_of(figures, arguments.turns, rng)) for _ in range(arguments.sessions)]
    ours = SessionRouted(rules)
    results = [ours.run(turns) for turns in sessions]
    own = added([tally for tally, _, _ in results])
    prompts, computed = sum(each[1] for each in results), sum(each[2] for each in results)
    turns = [turn for each in sessions for turn in each]
    num_hard = sum(turn.hard for turn in turns)
    share = own.hard_on_large / num_hard
    threshold = threshold_for(sessions, share)
    other = added([run_by_turn(each, threshold, rules.kept_s) for each in sessions])
    shown: dict[str, Any] = {
        "sessions": len(sessions),
        "turns": len(turns),
        "hard_share": num_hard / len(turns),
        "hard_on_large": share,
        "hard_on_large_by_turn": other.hard_on_large / num_hard,
        "threshold_by_turn": threshold,
        "all_on_large": own.on_large / len(turns),
        "all_on_large_by_turn": other.on_large / len(turns),
        "decisions_inside_turns": ours.inside,
        "switches_inside_turns": len(ours.faults),
        "switches": own.switches,
        "switches_by_turn": other.switches,
        "switches_ratio": own.switches / max(1, other.switches),
        "extra_token_share": own.extra_tokens / prompts,
        "extra_token_share_by_turn": other.extra_tokens / prompts,
        "extra_share_of_computed": own.extra_tokens / computed,
        **{f"why_{why}": count for why, count in sorted(ours.whys.items())},
        **spread("decision_{}_ms", ours.decisions_ms),
    }
    report("which model sessions' turns run on", shown)
    missed = list(ours.faults)
    if shown["switches_ratio"] > SWITCHES_MAX:
        missed.append(f"{shown['switches_ratio']:.3f} of the switches by turn: at most {SWITCHES_MAX}")
    if shown["extra_token_share"] > TOKENS_MAX:
        missed.append(f"{shown['extra_token_share']:.3f} of the prompt tokens: at most {TOKENS_MAX}")
    if shown["decision_p99_ms"] > DECISION_MS:
        missed.append(f"{shown['decision_p99_ms']:.3f} ms a decision: at most {DECISION_MS}")
    return is_faultless(missed)


if __name__ == "__main__":
    run_bench(main, __doc__, trace="", sessions=10_000, turns=8.0, seed=1)
