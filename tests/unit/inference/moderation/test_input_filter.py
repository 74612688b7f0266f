"""A message's verdict: what patterns and classifiers come to together, and when one of them fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inference.moderation import input_filter
from inference.moderation.input_filter import INLINE_MAX, PassedTexts, PolicyInputFilter, redact_spans, scan_message
from inference.moderation.policy import ImageRule, KindsRule, PhraseRule, Policy, PolicySide, ScoreRule
from inference.moderation.scan import Hit, Scanner
from inference.moderation.worker_client import NotJudged, NotTaken
from sessions.model.errors import Unavailable
from sessions.model.types import LOCAL_PRINCIPAL, InputImage
from sessions.model.verdicts import PASS, Verdict
from sessions.ports import JudgesImages

LONG = "x " * INLINE_MAX


def side(toxicity: str = "flag", pii: str = "redact") -> PolicySide:
    return PolicySide(
        phrases=PhraseRule(deny=("nightjar",), action="flag"),
        pii=KindsRule(kinds=("email", "person"), action=pii),  # type: ignore[arg-type]
        toxicity=ScoreRule(action=toxicity),  # type: ignore[arg-type]
    )


class Worker:
    """Has one result for every text: scores, or why there are none."""

    def __init__(
        self, scores: dict[str, Any] | Exception, hits: Exception | None = None, rules: PolicySide | None = None
    ):
        self.scores, self.hits = scores, hits
        self.scanner = Scanner(rules or side())
        self.scanned: list[str] = []

    def __call__(
        self, tenant: str, text: str, *, scan: bool
    ) -> tuple[asyncio.Future[Any] | None, asyncio.Future[Any] | None]:
        if scan:
            self.scanned.append(text)
        return _future(self.scores), _future(self.hits or scan_message(self.scanner, text)) if scan else None


def _future(result: Any) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


async def check(text: str, worker: Worker, rules: PolicySide | None = None) -> Verdict:
    policy = Policy(input=rules or side(), input_message="No.")
    return await PolicyInputFilter(policy, Scanner(policy.input), worker).check(LOCAL_PRINCIPAL, text)


def categories(verdict: Verdict) -> list[str]:
    return [each.category for each in verdict.findings]


FINE = {"toxicity": 0.1, "entities": []}


async def test_names_and_patterns_are_redacted_together() -> None:
    worker = Worker({"toxicity": 0.1, "entities": [("person", 0, 3, 0.9), ("location", 4, 6, 0.9)]})
    verdict = await check("Ana is ana@mail.example now", worker)
    assert (verdict.action, verdict.replacement) == ("redact", "[person] is [email] now")
    assert categories(verdict) == ["pii/email", "pii/person"] and worker.scanned == []


@pytest.mark.parametrize("scores", [{"toxicity": 0.9, "entities": []}, NotJudged("late")])
async def test_a_text_that_was_flagged_or_not_judged_is_judged_again(scores: Any) -> None:
    policy, worker = Policy(input=side(pii="flag")), Worker(scores)
    each = PolicyInputFilter(policy, Scanner(policy.input), worker)
    verdicts = [await each.check(LOCAL_PRINCIPAL, LONG) for _ in range(2)]
    assert len(worker.scanned) == 2 and verdicts[0].findings and verdicts[0] == verdicts[1]


def test_passed_texts_are_bounded_and_a_seam_is_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_filter, "PASSED_MAX", 2)
    passed = PassedTexts()
    keys = [passed.key(LOCAL_PRINCIPAL, "text", *seam) for seam in ((), (1, 2), (1, 3))]
    for key in keys[:2]:
        passed.add(key)
    assert passed.has(keys[0])
    passed.add(keys[2])
    assert [passed.has(key) for key in keys] == [True, False, True]


@pytest.mark.parametrize("failure", [NotJudged("late"), {"toxicity": NotJudged("late"), "entities": []}])
@pytest.mark.parametrize(("action", "expected"), [("block", "block"), ("flag", "flag")])
async def test_a_failed_classifier_blocks_or_flags(failure: Any, action: str, expected: str) -> None:
    rules = side(action, pii="flag")
    verdict = await check("Good morning", Worker(failure), rules)
    assert verdict.action == expected and "toxicity/unjudged" in categories(verdict)


async def judged_image(rule: ImageRule | None, score: Any = None) -> Verdict:
    policy = Policy(input=PolicySide(images=rule), input_message="No.", review_text=True)
    shown: list[str] = []

    def judge(image_url: str) -> asyncio.Future[Any]:
        shown.append(image_url)
        return _future(score)

    nothing = Worker(RuntimeError("no text is judged"))
    each = PolicyInputFilter(policy, Scanner(policy.input), nothing, judge_image=judge if score is not None else None)
    assert isinstance(each, JudgesImages)
    verdict = await each.check_image(LOCAL_PRINCIPAL, InputImage(image_url="data:image/png;base64,QUJD"))
    assert shown == ["data:image/png;base64,QUJD"] * (score is not None and rule is not None)
    assert all(finding.kept == "[image]" for finding in verdict.findings)
    return verdict


@pytest.mark.parametrize("action", ["block", "flag"])
async def test_a_rule_on_images_is_on_all_of_them_or_on_those_that_a_guard_finds_unsafe(action: Any) -> None:
    rule = ImageRule(action=action, threshold=0.7)
    for score, category in ((None, "images"), ((0.7, "violence"), "images/violence"), ((0.8, ""), "images")):
        verdict = await judged_image(rule, score)
        assert (verdict.action, categories(verdict)) == (action, [category])
        assert verdict.message == ("No." if action == "block" else "")
    assert await judged_image(rule, (0.69, "")) == PASS
    for failure in (NotJudged("late"), RuntimeError("a bug")):
        verdict = await judged_image(rule, failure)
        assert (verdict.action, categories(verdict)) == (action, ["images/unjudged"])


@pytest.mark.parametrize("error", [NotTaken("the worker ended"), NotJudged("late"), RuntimeError("a bug")])
async def test_a_text_that_nothing_has_scanned_is_to_be_sent_again(error: Exception) -> None:
    """It was refused as `content_filter`, which clients take for the text's fault and do not repeat."""
    with pytest.raises(Unavailable) as caught:
        await check(LONG, Worker(FINE, hits=error))
    assert (caught.value.code, caught.value.retryable) == ("filters_unavailable", True)


@pytest.mark.parametrize("scores", [NotTaken("ended"), {"toxicity": NotTaken("ended"), "entities": []}])
async def test_a_text_that_the_classifiers_worker_died_of_is_to_be_sent_again_where_it_would_be_blocked(
    scores: Any,
) -> None:
    with pytest.raises(Unavailable):
        await check("Good morning", Worker(scores), side("block", pii="flag"))
    verdict = await check("Good morning", Worker(scores), side("flag", pii="flag"))
    assert verdict.action == "flag" and "toxicity/unjudged" in categories(verdict)


def test_overlapping_spans_are_replaced_once() -> None:
    spans = [(2, 5, "[b]"), (0, 4, "[a]"), (0, 2, "[short]"), (6, 7, "[c]")]
    assert redact_spans("0123456789", spans) == "[a]5[c]789"


@pytest.mark.parametrize(
    "text",
    [
        "&amp;" * 400,
        "%25" * 600,
        "cHJvamVjdCBuaWdodGphcg== " * 80,
        "".join(f"\\u{ord(each):04x}" for each in "nightjar" * 40),
        "\U000e0041" * 2_000,
        "nightjar " * 220,
        "a.b,c;d: " * 220,
    ],
)
def test_a_text_is_read_twice_at_most(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, and decoded: readings of readings held the event loop for seconds."""
    read: list[int] = []
    find = Scanner.find

    def counted(self: Scanner, plain: str, folded: str, **more: Any) -> list[Hit]:
        read.append(len(plain))
        return find(self, plain, folded, **more)

    monkeypatch.setattr(Scanner, "find", counted)
    scan_message(Scanner(side()), text)
    assert len(read) <= 2 and sum(read) <= 2 * len(text)


def test_what_is_found_only_decoded_is_redacted_whole() -> None:
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=("jar", "night jar"), action="redact")))
    places = scan_message(scanner, "a night&#32;jar here")
    assert redact_spans("a night&#32;jar here", [(start, end, "[x]") for _, start, end in places]) == "a [x] here"
