"""The worker's answers: policies and models as they were loaded, and failures that stay where they are."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from inference.moderation import worker as worker_module
from inference.moderation.policy import Policies, parse_policies
from inference.moderation.worker import ModerationWorker
from inference.moderation.worker_frames import JudgeItem, JudgeRequest, JudgeResult, LoadRequest


def policies(phrase: str = "nightjar") -> Policies:
    return parse_policies(f"[policies.default.input]\nphrases = {{ deny = ['{phrase}'] }}\n")


def load(worker: ModerationWorker, given: Policies, *models: str) -> dict[str, str]:
    reply = worker.answer(LoadRequest(msgspec.json.encode(given), models))
    assert reply.error is None
    return reply.versions


def judge(worker: ModerationWorker, *items: JudgeItem) -> list[JudgeResult]:
    return worker.answer(JudgeRequest(items)).results


def test_texts_are_scanned_by_the_policy_of_their_version() -> None:
    worker, first, second = ModerationWorker(), policies(), policies("ledger")
    for each in (first, second):
        load(worker, each)
    old, new = first.of("any").version, second.of("any").version
    results = judge(worker, *(JudgeItem("a nightjar", (), version) for version in (old, new, "")))
    assert [each.hits for each in results] == [[([2, 10, "phrases", "phrase", "block"], 2, 10)], [], []]


def test_old_policies_are_forgotten_and_those_in_force_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "VERSIONS_MAX", 2)
    worker, loaded = ModerationWorker(), [policies(f"phrase {n}") for n in range(3)]
    for each in loaded:
        load(worker, each)
    results = judge(worker, *(JudgeItem("x", (), each.of("any").version) for each in loaded))
    assert [isinstance(each.hits, str) for each in results] == [True, False, False]


def test_a_model_is_loaded_once_and_an_unknown_one_is_an_error() -> None:
    worker = ModerationWorker()
    versions = load(worker, policies(), "toxicity")
    assert load(worker, policies(), "toxicity") == versions and list(versions) == ["toxicity"]
    (result,) = judge(worker, JudgeItem("Go fuck yourself, asshole.", ("toxicity",), ""))
    assert isinstance(result.scores, dict) and result.scores["toxicity"] > 0.5
    reply = worker.answer(LoadRequest(msgspec.json.encode(policies()), ("nothing",)))
    assert reply.error is not None and "nothing" in reply.error


class Picky:
    """A model that one text makes fail."""

    version = "picky/1"

    def judge(self, texts: Sequence[str]) -> list[float]:
        if "poison" in texts:
            raise ValueError("no")
        return [0.5] * len(texts)


def test_a_text_that_makes_a_model_fail_fails_alone() -> None:
    worker = ModerationWorker()
    worker._models["picky"] = Picky()
    reply = worker.answer(JudgeRequest(tuple(JudgeItem(text, ("picky",), "") for text in ("a", "poison", "b"))))
    assert [each.scores for each in reply.results] == [{"picky": 0.5}, "ValueError: no", {"picky": 0.5}]
