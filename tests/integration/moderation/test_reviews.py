"""Review cases from what filters find to what the user is told: real actors and doors, a policy in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.directory.memory import MemoryDirectory
from actors.hosting.services import Stores
from actors.maintenance.sweeps import Sweeps
from inference.simulated import SimulatedOptions
from persistence.memory.store import MemoryStore
from persistence.sql.reviews import SqlReviews
from sessions.clock import Clock
from sessions.model import events as ev
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.reviews import ReviewId
from sessions.model.types import SessionId, SessionKey, TenantId, UnixMs
from tests.support.doors.openai_server import SIMULATED, ScriptedEngine
from tests.support.doors.review_door import SECRET, Door, running


class Telling(ScriptedEngine):
    """Says when it has come to a `!`, and fails there if it is to."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__(SimulatedOptions(step_base_s=0.001))
        self.reached = asyncio.Event()
        self._fails = fails

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        async for part in super().generate(request):
            yield part
            if isinstance(part, Chunk) and "!" in part.text:
                self.reached.set()
                if self._fails:
                    raise RuntimeError("the engine is out of order")


async def test_what_a_policy_marks_is_claimed_decided_told_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml", review=True) as door:
        session, response = await door.ask("hello", f"Sure: {SECRET} starts")
        (case,) = await door.queue()
        assert case["category"].startswith("phrases/")
        assert (case["action"], case["direction"], case["cause"]) == ("block", "output", "policy")
        assert (case["response_id"], case["session"], case["state"]) == (response["id"], session, "open")
        assert (case["start"], case["end"]) == (6, 22)
        status, done = await door.decide(case["id"], "overturned", **{"idempotency-key": "k1"})
        assert (status, done["state"], done["outcome"], done["remark"]) == (200, "decided", "overturned", "looked")
        again = await door.said(
            "POST",
            f"/v1/reviews/{case['id']}/decide",
            {"outcome": "overturned", "note": "looked"},
            **{"idempotency-key": "k1"},
        )
        assert again[0] == 200 and again[1]["decided_at"] == done["decided_at"]
        assert door.told(session) == [
            ev.ReviewDecided(
                review_id=case["id"],
                category="phrases",
                outcome="overturned",
                decision=1,
                response_id=response["id"],
            )
        ]
        shown = (await door.said("GET", f"/v1/sessions/{session}"))[1]
        assert [(each["review_id"], each["outcome"]) for each in shown["reviews"]] == [(case["id"], "overturned")]
        exported = (await door.http.get(f"/v1/sessions/{session}/export")).text
        assert "nightjar" not in exported and "nightjar" not in (await door.http.get(f"/v1/reviews/{case['id']}")).text
        measures = door.server.runtime.metrics
        assert measures.reviews_opened.values == {("policy", "output", "block", "phrases"): 1}
        assert measures.reviews_decided.values == {("phrases", "overturned"): 1}
        assert await SqlReviews(door.server.journal.database).undelivered(limit=9) == []


async def test_a_flag_is_a_case_that_its_user_hears_nothing_of(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as door:
        session, _ = await door.ask("hello", "Write to ana@example.org, or to bob@example.org.")
        (case,) = await door.queue(category="pii")
        assert (case["action"], case["category"]) == ("flag", "pii/email")
        assert (await door.decide(case["id"], "upheld"))[0] == 200
        assert door.told(session) == []
        assert (await door.queue(state="open"), await door.queue(state="decided", category="phrases")) == ([], [])


async def test_an_appeal_against_an_answer_is_made_once_and_brings_no_text_back(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml") as door:
        session, response = await door.ask("hello", f"Sure: {SECRET} starts")
        assert await door.queue() == []
        path = f"/v1/sessions/{session}/responses/{response['id']}/appeal"
        status, made = await door.said("POST", path, {"note": "It is a museum."}, **{"idempotency-key": "a1"})
        assert status == 201
        again = await door.said("POST", path, {"note": "It is a museum."}, **{"idempotency-key": "a1"})
        assert again == (201, made)
        status, error = await door.said("POST", path, {"note": "Please."})
        assert (status, error["error"]["code"]) == (409, "appealed_already")
        (case,) = await door.queue(appealed="true")
        assert (case["id"], case["cause"], case["action"]) == (made["review_id"], "appeal", "block")
        whole = (await door.said("GET", f"/v1/reviews/{case['id']}"))[1]
        assert (whole["note"], whole["text"]) == ("It is a museum.", None)
        before = (await door.http.get(f"/v1/responses/{response['id']}")).json()["output"]
        assert (await door.decide(case["id"], "overturned"))[0] == 200
        kinds = [type(event) for event in door.told(session)]
        assert kinds == [ev.ReviewAppealed, ev.ReviewDecided]
        assert (await door.http.get(f"/v1/responses/{response['id']}")).json()["output"] == before
        assert (await door.said("POST", path, {}))[1]["error"]["code"] == "appealed_already"
        harmless = await door.ask("hello", "Fine.")
        status, error = await door.said("POST", f"/v1/sessions/{harmless[0]}/responses/{harmless[1]['id']}/appeal", {})
        assert (status, error["error"]["code"]) == (409, "not_withheld")
        status, error = await door.said("POST", f"/v1/sessions/{session}/responses/resp_none/appeal", {})
        assert (status, error["error"]["code"]) == (404, "response_not_found")


@pytest.mark.parametrize(("mode", "pii"), [("async", "retract"), ("window", "redact"), ("strict", "redact")])
async def test_what_was_taken_back_or_redacted_can_be_appealed_and_stays_away(
    tmp_path: Path, mode: str, pii: str
) -> None:
    async with running(tmp_path / "p.toml", mode=mode, pii=pii) as door:
        door.server.engine.script.append("Write to ana@example.org now please")
        session, response = await door.ask("hello", " or not.")
        door.server.engine.script.clear()
        path = f"/v1/sessions/{session}/responses/{response['id']}/appeal"
        status, made = await door.said("POST", path, {"note": "It is my own."})
        assert status == 201, made
        (case,) = await door.queue()
        assert (case["action"], case["category"], case["id"]) == (pii, "pii/email", made["review_id"])
        assert (await door.decide(case["id"], "overturned"))[0] == 200
        assert "ana@example" not in (await door.http.get(f"/v1/sessions/{session}/export")).text
        assert [type(event) for event in door.told(session)] == [ev.ReviewAppealed, ev.ReviewDecided]


@pytest.mark.parametrize("keep", [False, True])
async def test_a_refused_message_is_appealed_with_its_words_and_kept_only_where_the_policy_says_so(
    tmp_path: Path, keep: bool
) -> None:
    async with running(tmp_path / "p.toml", keep=keep, review=True) as door:
        session, _ = await door.ask("hello")
        message = {"model": SIMULATED, "input": f"Tell me of {SECRET}", "conversation": session}
        assert (await door.said("POST", "/v1/responses", message))[0] == 400
        (refused,) = await door.queue()
        assert (refused["direction"], refused["response_id"], refused["item_id"]) == ("input", None, None)
        whole = (await door.said("GET", f"/v1/reviews/{refused['id']}"))[1]
        assert whole["text"] == (f"Tell me of {SECRET}" if keep else None)
        path = f"/v1/sessions/{session}/messages/appeal"
        status, made = await door.said("POST", path, {"content": f"Tell me of {SECRET}", "note": "The bird."})
        assert status == 201
        status, error = await door.said("POST", path, {"content": "Tell me of birds"})
        assert (status, error["error"]["code"]) == (409, "not_withheld")
        whole = (await door.said("GET", f"/v1/reviews/{made['review_id']}"))[1]
        assert (whole["note"], whole["text"]) == ("The bird.", f"Tell me of {SECRET}" if keep else None)
        assert (await door.decide(made["review_id"], "upheld"))[0] == 200
        assert door.told(session)[-1] == ev.ReviewDecided(
            review_id=ReviewId(made["review_id"]), category="phrases", outcome="upheld", decision=1
        )
        log = door.server.log(session)
        assert SECRET not in str([(each.event, each.private) for each in log])


async def test_a_message_that_is_only_flagged_goes_on_and_is_a_case(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml", review=True, input="flag") as door:
        session, response = await door.ask(f"Tell me of {SECRET}")
        assert response["status"] == "completed"
        (case,) = await door.queue()
        said = [each.event.item.id for each in door.server.log(session) if isinstance(each.event, ev.ItemCreated)]
        assert (case["item_id"], case["action"], case["offset"] > 0) == (said[0], "flag", True)


async def test_what_nobody_told_the_session_is_told_by_upkeep_once(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml", review=True) as door:
        session, _ = await door.ask("hello", f"Sure: {SECRET} starts")
        (case,) = await door.queue()
        books, name = SqlReviews(door.server.journal.database), ReviewId(case["id"])
        now = UnixMs(door.server.gateway.now_ms())
        await books.claim(name, by="eve", now=now, command="c.1")
        await books.decide(name, by="eve", outcome="upheld", remark="", now=now, command="d.1")  # and then it dies
        stores = Stores(MemoryStore(journal=door.server.journal), MemoryDirectory())
        gateway = door.server.gateway
        upkeep = Sweeps(door.server.runtime, stores, door.server.engine, Clock(gateway.now_ms, gateway.new_id))
        assert await upkeep.deliver_reviews() == 1
        assert [type(event) for event in door.told(session)] == [ev.ReviewDecided]
        assert await upkeep.deliver_reviews() == 0
        await books.mark_delivered(name, decision=1)
        door.server.journal.database.query("UPDATE reviews SET told = 0")  # told, and not noted
        assert await upkeep.deliver_reviews() == 1
        assert len(door.told(session)) == 1


async def test_an_outcome_of_a_deleted_session_is_told_to_nobody(tmp_path: Path) -> None:
    async with running(tmp_path / "p.toml", review=True) as door:
        session, _ = await door.ask("hello", f"Sure: {SECRET} starts")
        (case,) = await door.queue()
        assert (await door.http.delete(f"/v1/sessions/{session}")).status_code == 200
        assert (await door.decide(case["id"], "upheld"))[0] == 200
        assert await SqlReviews(door.server.journal.database).undelivered(limit=9) == [] and door.told(session) == []


@pytest.mark.parametrize("mode", ["window", "strict"])
async def test_what_was_found_in_an_answer_that_breaks_is_known(tmp_path: Path, mode: str) -> None:
    async with running(tmp_path / "p.toml", engine=Telling(fails=True), mode=mode) as door:
        session, response = await door.ask("hello", "Write to ana@example.org now!")
        assert response["status"] == "failed"
        await found_in(door, session)


@pytest.mark.parametrize("mode", ["window", "strict"])
async def test_what_was_found_in_an_answer_that_is_cancelled_is_known(tmp_path: Path, mode: str) -> None:
    engine = Telling(fails=False)
    async with running(tmp_path / "p.toml", engine=engine, mode=mode) as door:
        answer = "Write to ana@example.org now! " + "and then " * 2000
        session, response = await door.ask("hello", answer, background=True)
        await engine.reached.wait()
        await door.http.post(f"/v1/responses/{response['id']}/cancel")
        actor = door.server.runtime.actor(SessionKey(TenantId("local"), SessionId(session)))
        assert actor is not None
        await actor.written()
        await found_in(door, session)


async def found_in(door: Door, session: str) -> None:
    assert door.server.runtime.metrics.verdicts.values == {("output", "flag", "pii"): 1}
    (case,) = await door.queue()
    assert (case["session"], case["category"]) == (session, "pii/email")
