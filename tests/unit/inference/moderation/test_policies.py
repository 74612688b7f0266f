"""Policy files, policies in force, and the verdict on a message."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inference.moderation import input_filter
from inference.moderation.filter_set import PolicyFilterSet, check_packages
from inference.moderation.input_filter import INLINE_MAX, PassedTexts, PolicyInputFilter, redact_spans, scan_message
from inference.moderation.output_filter import JudgedOutputFilter
from inference.moderation.policy import (
    FILE_BYTES_MAX,
    BadPolicy,
    ImageRule,
    KindsRule,
    PhraseRule,
    Policy,
    PolicySide,
    ScoreRule,
    parse_policies,
    read_policies,
)
from inference.moderation.scan import Hit, Scanner
from inference.moderation.worker_client import NotJudged, NotTaken
from sessions.model.errors import Unavailable
from sessions.model.types import LOCAL_PRINCIPAL, InputImage, Principal, TenantId
from sessions.model.verdicts import PASS, Verdict
from sessions.ports import JudgesImages

# -- policy
GOOD = """
[guards.g]
url = "http://guard.example/v1"
[policies.default]
[policies.careful]
mode = "strict"
[policies.careful.input]
pii = { kinds = ["email", "person"], action = "redact" }
guard = { name = "g" }
[policies.careful.output]
toxicity = { action = "flag" }
[tenants]
acme = "careful"
"""


def test_a_rule_on_images_may_name_a_guard() -> None:
    seeing = GOOD.replace("[policies.default]", "template = 'Is it safe?{text}'\n[policies.default]")
    policies = parse_policies(seeing + "[policies.default.input.images]\nguard = 'g'\nthreshold = 0.9\n")
    assert policies.guarded == {"g"} and policies.models == {"guard", "entities", "toxicity"}
    rule = policies.of("other").input.images
    assert rule is not None and (rule.action, rule.guard, rule.threshold) == ("block", "g", 0.9)
    every = parse_policies("[policies.default.input.images]\naction = 'flag'\n")
    assert every.guarded == frozenset() and every.of("other").input.rules.keys() == {"images"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "policies"),
        ("[policies.other]\n", "`default`"),
        ("[policies.default]\nmode = 'loud'\n", "mode"),
        ("[policies.default]\nmode='async'\n[policies.default.input]\npii = { action = 'retract' }\n", "input.pii"),
        ("[policies.default.input]\ntoxicity = { threshold = 2.0 }\n", "threshold"),
        ("[policies.default.input]\nprompt_injection = {}\n", "use `guard`"),
        ("policies =", "Invalid"),
        ("[policies.default]\nmodes = 'x'\n", "modes"),
        ("[policies.default]\n[tenants]\na = 'b'\n", "tenants.a"),
        ("[policies.default.input]\npii = { kinds = ['emails'] }\n", "policies.default.input.pii.kinds"),
        ("[policies.default.output]\npii = { kinds = ['person'] }\n", "in messages only"),
        ("[policies.default.input]\nphrases = { deny = [] }\n", "`deny` is empty"),
        ("[policies.default.input]\ntoxicity = { action = 'redact' }\n", "names no span"),
        ("[policies.default.output]\nsecrets = { action = 'retract' }\n", "mode `async`"),
        ("[policies.default.input]\nguard = {}\n", "no guard named 'default'"),
        ("[policies.default.input.images]\naction = 'redact'\n", "input.images.action"),
        ("[policies.default.output.images]\n", "only messages"),
        ("[policies.default.input.images]\nguard = 'g'\n", "no guard named 'g'"),
        ("[guards.g]\nmodel_path = 'g.gguf'\n[policies.default.input.images]\nguard = 'g'\n", "sees no images"),
        ("[guards.g]\nurl = 'http://x'\n[policies.default.input.images]\nguard = 'g'\n", "asks about an image"),
        ("[policies.default", "']'"),
    ],
)
def test_a_malformed_policy_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        parse_policies(text)
    assert why in caught.value.public_message


def test_a_file_is_toml_or_json_and_named_where_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"policies": {"default": {"mode": "async"}}}')
    assert read_policies(str(path)).of("any").mode == "async"
    path.write_text("{")
    with pytest.raises(BadPolicy, match=r"p\.json"):
        read_policies(str(path))
    with pytest.raises(BadPolicy, match=r"missing\.toml"):
        read_policies(str(tmp_path / "missing.toml"))
    path.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(BadPolicy, match="larger"):
        read_policies(str(path))


# -- filter set
POLICY = """
[policies.default]
[policies.careful]
mode = "strict"
[policies.careful.input]
phrases = { deny = ["nightjar"] }
[policies.careful.output]
phrases = { deny = ["nightjar"] }
[tenants]
acme = "careful"
"""
ACME = Principal(tenant=TenantId("acme"), key_id="k")
OTHER = Principal(tenant=TenantId("other"), key_id="k")


@asynccontextmanager
async def opened(path: Path, text: str = POLICY) -> AsyncIterator[PolicyFilterSet]:
    path.write_text(text)
    filters = PolicyFilterSet(str(path))
    await filters.open()
    try:
        yield filters
    finally:
        await filters.close()


async def test_a_reload_replaces_the_policies_or_changes_nothing(tmp_path: Path) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []

    async def listener(action: str, detail: dict[str, Any]) -> None:
        heard.append((action, detail))

    async with opened(path := tmp_path / "p.toml") as filters:
        filters.subscribe(listener)
        before = filters.versions
        path.write_text("[policies.other]\n")
        assert not await filters.reload() and filters.versions == before
        (message,) = filters.input_filters(ACME)
        assert (await message.check(ACME, "a nightjar")).action == "block"
        path.write_text("[policies.default.input]\nphrases = { deny = ['ledger'] }\n")
        assert await filters.reload() and set(filters.versions) == {"default"}
        (message,) = filters.input_filters(ACME)
        assert [(await message.check(ACME, each)).action for each in ("nightjar", "ledger")] == ["pass", "block"]
    assert [action for action, _ in heard] == ["policy.refused", "policy.loaded"]
    assert heard[0][1]["versions"] == before and "`default`" in heard[0][1]["error"]


async def test_a_side_with_classifiers_has_their_versions_in_its_findings(tmp_path: Path) -> None:
    text = "[policies.default.input]\ntoxicity = { action = 'flag' }\n"
    text += "[policies.default.output]\ntoxicity = { action = 'flag' }\n"
    async with opened(tmp_path / "p.toml", text) as filters:
        (message,), (answer,) = filters.input_filters(OTHER), filters.output_filters(OTHER)
        attack = "Go fuck yourself, asshole."
        (finding,) = (await message.check(OTHER, attack)).findings
        assert finding.category == "toxicity" and finding.model.startswith("alt-profanity-check/")
        assert isinstance(answer, JudgedOutputFilter)
        answer.feed(attack)
        await answer.settle()
        assert [each.model for each in answer.finish()[1].findings] == [finding.model]


async def test_what_cannot_be_opened_is_closed_again(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="default"):
        async with opened(tmp_path / "p.toml", "[policies.other]\n"):
            pass
    guarded = "[guards.default]\nmodel_path = 'none.gguf'\n[policies.default.input]\nguard = {}\n"
    with pytest.raises(BadPolicy, match=r"guards\.default: .*no such file"):
        async with opened(tmp_path / "p.toml", guarded):
            pass


def test_a_model_without_its_packages_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages(["guard"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadPolicy, match="setup-safety"):
        check_packages(["guard", "toxicity"])


# -- input filter
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


async def test_a_long_message_is_scanned_in_the_worker() -> None:
    worker = Worker(FINE)
    verdict = await check(LONG + "ana@mail.example", worker)
    assert verdict.action == "redact" and verdict.replacement == LONG + "[email]" and len(worker.scanned) == 1


def test_passed_texts_are_bounded_and_a_seam_is_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_filter, "PASSED_MAX", 2)
    passed = PassedTexts()
    keys = [passed.key(LOCAL_PRINCIPAL, "text", *seam) for seam in ((), (1, 2), (1, 3))]
    for key in keys[:2]:
        passed.add(key)
    assert passed.has(keys[0])
    passed.add(keys[2])
    assert [passed.has(key) for key in keys] == [True, False, True]


@pytest.mark.parametrize(
    ("scores", "category"),
    [
        (NotJudged("late"), "toxicity/unjudged"),
        ({"toxicity": NotJudged("late"), "entities": []}, "toxicity/unjudged"),
        ({"toxicity": (0.9, "insult"), "entities": []}, "toxicity/insult"),
    ],
)
@pytest.mark.parametrize("action", ["block", "flag"])
async def test_a_score_over_the_threshold_or_none_at_all_blocks_or_flags(
    scores: Any, category: str, action: str
) -> None:
    verdict = await check("Good morning", Worker(scores), side(action, pii="flag"))
    assert verdict.action == action and category in categories(verdict)
    assert verdict.message == ("No." if action == "block" else "")


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
