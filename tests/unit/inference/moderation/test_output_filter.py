"""The filter of answers: however an engine splits a text, no code point of what is forbidden gets through.

The reference is the same filter fed the whole text at once, and for planted spans the plan itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.moderation.output_filter import RETRACTED, JudgedOutputFilter, PolicyOutputFilter
from inference.moderation.policy import Policy, parse_policies
from inference.moderation.scan import Scanner
from sessions.model.generation import Chunk
from sessions.ports import OutputFilter
from sessions.turn.output_pipeline import OutputPipeline, Release
from tests.support.secret_spans import AROUND, SPANS

BEFORE, AFTER = "We said so: ", " and then 3 more words."


def policy(mode: str = "window", action: str = "block", **more: object) -> Policy:
    extra = "\n".join(f"{name} = {value!r}" for name, value in more.items()).replace("'", '"')
    return parse_policies(
        f"""
        [policies.default]
        mode = "{mode}"
        {extra}
        [policies.default.output]
        phrases = {{ deny = ["project nightjar"], allow = ["project nightjar museum"], action = "{action}" }}
        pii = {{ action = "{action}" }}
        secrets = {{ action = "{action}" }}
        """
    ).of("any")


BLOCKING = policy()
SCANNER = Scanner(BLOCKING.output)


def run(filters: Sequence[OutputFilter], pieces: Sequence[str]) -> tuple[str, Release | None]:
    """What is released, and the release that ended it."""
    pipeline = OutputPipeline((), filters)
    shown = ""
    for index, piece in enumerate(pieces):
        release = pipeline.feed(Chunk((index,), piece))
        if release is not None:
            shown += release.text
            if release.ended or release.restart:
                return shown, release
    release = pipeline.finish()
    return shown + (release.text if release is not None else ""), release


def answer(*pieces: str, calls: bool = False) -> tuple[str, Release | None]:
    return run([PolicyOutputFilter(BLOCKING, SCANNER, calls=calls)], pieces)


@pytest.mark.parametrize("kind", SPANS)
def test_a_planted_span_is_withheld_however_it_is_split_and_at_the_very_end(kind: str) -> None:
    before, after = AROUND.get(kind, (BEFORE, AFTER))
    text = before + SPANS[kind] + after
    at_the_end = before + SPANS[kind] + (after.rstrip() if kind in AROUND else "")
    for pieces in (*([text[:at], text[at:]] for at in range(1, len(text))), [*text], [*at_the_end]):
        shown, release = answer(*pieces)
        assert shown == before, pieces
        assert release is not None and release.ended == "content_filter"


@pytest.mark.parametrize(
    "disguised",
    [
        "pr\u200boject night\u2060jar",
        "PROJECT\n\n  NIGHTJAR",
        "рrоjесt nіghtjаr",
        "ｐｒｏｊｅｃｔ ｎｉｇｈｔｊａｒ",
        "p\u0301roje\u0327ct nightjar",
        "𝐩𝐫𝐨𝐣𝐞𝐜𝐭 𝔫𝔦𝔤𝔥𝔱𝔧𝔞𝔯",
    ],
)
def test_disguises_are_seen_through(disguised: str) -> None:
    text = f"It is {disguised}!"
    for pieces in ([text], list(text)):
        shown, release = answer(*pieces)
        assert shown == "It is " and release is not None and release.ended == "content_filter"


@pytest.mark.parametrize("escaped", [r"pro\u006aect nightjar", r"project\nnightjar", r"project \u006e\u0069ghtjar"])
def test_escapes_in_the_arguments_of_a_call_are_read_through(escaped: str) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "' + escaped + '"}}</tool_call>'
    for pieces in ([text], list(text)):
        shown, _ = answer(*pieces, calls=True)
        assert shown == text[: text.index(escaped)]


words = st.sampled_from(
    ["project", "nightjar", "museum", "Project", "4111", "1111", "a@b.example.org", "is", "12", "x" * 40]
)
gaps = st.sampled_from([" ", "  ", "\n", ", ", ". ", "-", "é", "日本", "\u200b"])


@given(st.lists(st.tuples(words, gaps), max_size=14), st.data())
def test_what_is_shown_does_not_depend_on_how_it_is_split(parts: list[tuple[str, str]], data: st.DataObject) -> None:
    text = "".join(word + gap for word, gap in parts)
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=12))})
    whole, ended = answer(text)
    shown, release = answer(*(text[start:end] for start, end in pairwise(cuts)))
    assert shown == whole
    assert (release.ended if release is not None else None) == (ended.ended if ended is not None else None)


def test_async_shows_at_once_and_takes_back() -> None:
    retracting = policy(mode="async", action="retract")
    filters = [PolicyOutputFilter(retracting, Scanner(retracting.output), shown="Hello. ")]
    shown, release = run(filters, list("Mail ana@example.org now"))
    assert shown.startswith("Mail ana@example.org ")
    assert release is not None and release.restart and release.retracted is not None
    assert (release.retracted.start, release.retracted.end) == (12, 27)
    assert release.retracted.replacement == RETRACTED and not release.retracted.ends


def test_a_word_without_an_end_is_let_through_and_still_watched() -> None:
    text = "a" * 3_000 + ",AKIAIOSFODNN7EXAMPLE," + "b" * 1_000
    shown, release = answer(*text)
    assert shown == "a" * 3_000 + "," and release is not None and release.ended == "content_filter"
    fed = PolicyOutputFilter(BLOCKING, SCANNER)
    allowed, _ = fed.feed("a" * 3_000)
    assert allowed >= 2_000


def test_calls_are_never_shown_before_they_are_judged() -> None:
    retracting = policy(mode="async", action="block")
    filters = [PolicyOutputFilter(retracting, Scanner(retracting.output), calls=True)]
    shown, release = run(filters, list("Mail ana@example.org now"))
    assert shown == "Mail " and release is not None and release.retracted is None


# -- classifiers ------------------------------------------------------------------------------------------------------


def judged_policy(mode: str, action: str) -> Policy:
    return parse_policies(
        f"""
        [policies.default]
        mode = "{mode}"
        window = 32
        overlap = 8
        [policies.default.output]
        toxicity = {{ action = "{action}", threshold = 0.5 }}
        pii = {{ kinds = ["email"], action = "redact" }}
        """
    ).of("any")


class Judge:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, asyncio.Future[dict[str, float]]]] = []

    def __call__(self, text: str, models: Sequence[str], timeout_s: float) -> asyncio.Future[dict[str, float]]:
        future = asyncio.get_running_loop().create_future()
        self.asked.append((text, future))
        return future

    def say(self, index: int, score: float | Exception) -> None:
        future = self.asked[index][1]
        if isinstance(score, Exception):
            future.set_exception(score)
        else:
            future.set_result({"toxicity": score})


def judged(mode: str = "window", action: str = "block") -> tuple[OutputPipeline, Judge]:
    wanted, judge = judged_policy(mode, action), Judge()
    return OutputPipeline((), [JudgedOutputFilter(wanted, Scanner(wanted.output), judge)]), judge


@pytest.mark.parametrize(("action", "ended"), [("block", "content_filter"), ("flag", None)])
async def test_a_classifier_that_errs_fails_closed_for_blocks_and_open_for_flags(
    action: str, ended: str | None
) -> None:
    pipeline, judge = judged(action=action)
    assert pipeline.feed(Chunk((1,), "One is fine. ")) is None
    judge.say(0, RuntimeError("gone"))
    release = pipeline.feed(Chunk((2,), "x"))
    assert release is not None and release.ended == ended
    assert release.text == ("" if ended else "One is fine. ")
    assert [finding.category for finding in pipeline.take_findings()] == ["toxicity/unjudged"]


async def test_the_end_waits_for_the_last_judgement() -> None:
    pipeline, judge = judged()
    assert pipeline.feed(Chunk((1,), "No full stop")) is None
    assert pipeline.finish() is None and pipeline.closing == "end"
    closing = asyncio.ensure_future(pipeline.close())
    await asyncio.sleep(0)
    judge.say(0, 0.0)
    release = await closing
    assert release is not None and release.text == "No full stop" and release.ended is None


async def test_a_pattern_counts_once_what_stands_before_it_is_judged() -> None:
    pipeline, judge = judged()
    assert pipeline.feed(Chunk((1,), "I write to a@b.example now x")) is None
    assert [text for text, _ in judge.asked][:1] == ["I write to "]
    judge.say(0, 0.0)
    release = pipeline.feed(Chunk((2,), " more"))
    assert release is not None and release.restart and release.text == "I write to [email]"


async def test_async_takes_a_judged_passage_back() -> None:
    pipeline, judge = judged("async", "retract")
    release = pipeline.feed(Chunk((1,), "Two is not. "))
    assert release is not None and release.text == "Two is not. "
    judge.say(0, 0.9)
    release = pipeline.feed(Chunk((2,), "And"))
    assert release is not None and release.text == "And" and release.retracted is not None and release.restart
    assert (release.retracted.start, release.retracted.end) == (0, 12)
