"""Two servers compared on a machine whose speed wanders: pairs of short runs that take turns.

A pair is the runs A B B A B A A B (the order of Thue and Morse), so that neither a slope nor a bend of the machine's
speed within it favours one of the two; both servers are up all the time, one works at a time. The ratio of a pair is
that of its total times; the figures are the mean over pairs and its one-sided 95% lower bound.

First tokens come in steps of the engine, so the medians of the two sides may lie a whole step apart where hardly one
question waited longer. Each question is asked once of either side, in its place among the streams: the median of what
it waited longer with us stands beside the difference of the medians, which is what the bar is for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from string import ascii_letters

from bench.support import filler, lower_bound, percentile

ORDER = ("ours", "theirs", "theirs", "ours", "theirs", "ours", "ours", "theirs")

# tokens/s, and for each question in order the ms to its first token
Run = Callable[[list[str]], Awaitable[tuple[float, list[float]]]]


def prompts(streams: int, number: int) -> list[str]:
    """Questions that differ from their first token on, as those of different people do. (llama-server would reuse what
    two of them share; we never reuse what somebody else has said.)"""
    each = range(number * streams, (number + 1) * streams)
    return [f"{ascii_letters[n % len(ascii_letters)]}. {filler(1, n)} {n}: write a long story." for n in each]


def speed(answers: list[tuple[int, float]], took_s: float) -> tuple[float, list[float]]:
    """What a run returns, of each answer's tokens and ms to the first."""
    return sum(tokens for tokens, _ in answers) / took_s, [first_ms for _, first_ms in answers]


async def compared(pairs: int, streams: int, ours: Run, theirs: Run, *, later_ms: int) -> dict[str, float]:
    """`later_ms`: the bar for the difference of the first tokens. Each question is asked once of either side."""
    sides = {"ours": ours, "theirs": theirs}
    for run in sides.values():
        await run(prompts(streams, 10_000))
    ratios: list[float] = []
    firsts: dict[str, list[float]] = {"ours": [], "theirs": []}
    speeds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for pair in range(pairs):
        took = {"ours": 0.0, "theirs": 0.0}
        asked = {"ours": 0, "theirs": 0}
        for side in ORDER:
            rate, waits = await sides[side](prompts(streams, pair * len(ORDER) + asked[side]))
            asked[side] += 1
            took[side] += 1 / rate
            firsts[side] += waits
        for side, seconds in took.items():
            speeds[side].append(asked[side] / seconds)
        ratios.append(took["theirs"] / took["ours"])
    ours_ms, theirs_ms = (percentile(firsts[side], 0.5) for side in ("ours", "theirs"))
    return {
        "streams": streams,
        "pairs": pairs,
        "tokens/s ours (median)": percentile(speeds["ours"], 0.5),
        "tokens/s llama-server (median)": percentile(speeds["theirs"], 0.5),
        "ratio, 95% lower bound (bar 0.95)": lower_bound(ratios),
        "ratio, mean": sum(ratios) / len(ratios),
        "ratio, least": min(ratios),
        "ratio, greatest": max(ratios),
        "TTFT p50 ms ours": ours_ms,
        "TTFT p50 ms llama-server": theirs_ms,
        f"TTFT p50 difference ms (bar {later_ms})": ours_ms - theirs_ms,
        "TTFT added to a question ms, p50": percentile(
            [mine - other for mine, other in zip(firsts["ours"], firsts["theirs"], strict=True)], 0.5
        ),
    }
