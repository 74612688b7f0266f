"""Summaries and titles: made where nobody waits."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.hosting.runtime import RuntimeLimits
from sessions.actor.actor_context import ActorLimits
from sessions.actor.compactor import INSTRUCTION, PRIORITY, cleaned
from sessions.actor.title_writer import LENGTH_MAX, PROMPT, first_words
from sessions.actor.title_writer import PRIORITY as TITLE_PRIORITY
from sessions.actor.title_writer import cleaned as cleaned_title
from sessions.machine.inputs_and_effects import TitleWritten
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import NotFound
from sessions.model.generation import EngineInfo, GenerationRequest
from sessions.model.types import ContextPolicy, InputFile, InputText, ItemId, ResponseId, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.cluster.replicas import KEY, SESSION, Place, Reader, Replica
from tests.support.scripted import Scripted
from tests.support.stores.tables import usage_in
from tests.support.virtual_time import advance, outcome, settled, virtual

WINDOW = 1_456  # bytes are tokens here: 1,200 for prompts, compacted at 1,020, down to 600


class Recording(Scripted):
    """Answers, summaries and titles in order; keeps what it was asked."""

    def __init__(self, *scripts: str) -> None:
        super().__init__(list(scripts), dict[ResponseId, str]())
        self.requests: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> Any:
        self.requests.append(request)
        async for part in super().generate(request):
            yield part


class Small(Recording):
    """Has a window that is full soon."""

    def __init__(self, *scripts: str) -> None:
        super().__init__(*scripts)
        self.warmed: list[list[int]] = []
        self.prefills = asyncio.Event()
        self.prefills.set()
        self.idle = True

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, context_window=WINDOW)

    async def warm(self, key: Any, prompt: Any, *, background: bool = False) -> bool:
        if not self.idle:
            return False
        self.warmed.append(list(prompt))
        await self.prefills.wait()
        return True

    @property
    def summaries(self) -> list[GenerationRequest]:
        return [each for each, text in zip(self.requests, self.prompts, strict=True) if INSTRUCTION in text]


async def at_work(
    place: Place, engine: Small, policy: ContextPolicy = "compact", **more: Any
) -> tuple[Replica, Reader]:
    def context_policy(tenant: TenantId) -> ContextPolicy:
        return policy

    limits = RuntimeLimits(actor=ActorLimits(context_policy=context_policy))
    replica = await place.replica(f"r{len(place.replicas)}", engine=engine, limits=limits, **more)
    if len(place.replicas) == 1:
        await replica.create()
    return replica, place.read(replica)


def events(place: Place, kind: type[Any]) -> list[Any]:
    return [record.event for record in place.records() if isinstance(record.event, kind)]


async def turn(replica: Replica, reader: Reader, text: str) -> cm.Ok:
    answer = await replica.say(text)
    await reader.ended(answer.response_id)
    return answer


LONG = "x" * 320
THREE = ["One " + LONG, "Two " + LONG, "Three " + LONG]


async def filled(place: Place, *after: str, policy: ContextPolicy = "compact", **more: Any) -> Any:
    """Two turns, not yet full; the third will be."""
    engine = Small(*THREE, *after)
    replica, reader = await at_work(place, engine, policy, **more)
    for word in ("first", "second"):
        await turn(replica, reader, word + LONG[:30])
    await settled()
    assert not engine.summaries
    return engine, replica, reader


@virtual
async def test_a_full_conversation_is_summarised_between_turns_and_its_new_head_prefilled() -> None:
    async with Place() as place:
        engine, replica, reader = await filled(place, "Ana is 7.", "Four.")
        third = await turn(replica, reader, "third" + LONG[:30])
        await reader.sees(lambda record: isinstance(record.event, ev.ContextCompacted))
        await settled()
        (compacted,) = events(place, ev.ContextCompacted)
        assert compacted.summary.text == "Ana is 7." and compacted.cause == "limit" and compacted.items >= 2
        assert compacted.tokens_after < compacted.tokens_before
        (request,) = engine.summaries
        assert request.priority == PRIORITY
        answered = engine.requests[2]
        assert list(request.prompt[: len(answered.prompt)]) == list(answered.prompt)  # whose KV is there
        assert {row.response_id for row in usage_in(place.store)} >= {third.response_id}
        assert len(usage_in(place.store)) == 3  # nobody is billed for it
        (head,) = engine.warmed
        assert len(head) + len(engine.tokenizer.answer_opening) == compacted.tokens_after
        await turn(replica, reader, "and now?")
        prompt = engine.prompts[-1]
        assert "Ana is 7." in prompt and "first" not in prompt and "third" in prompt
        assert list(engine.requests[-1].prompt[: len(head)]) == head
        assert not events(place, ev.ContextFitted)


@virtual
async def test_until_its_prompts_are_prefilled_turns_go_on_from_the_whole_conversation() -> None:
    async with Place() as place:
        engine, replica, reader = await filled(place, "Ana is 7.", "Four.", "Five.")
        engine.prefills.clear()
        await turn(replica, reader, "third" + LONG[:30])
        await advance(1.0)
        assert len(engine.summaries) == len(engine.warmed) == 1 and not events(place, ev.ContextCompacted)
        fourth = await turn(replica, reader, "4")
        assert "Ana is 7." not in engine.prompts[-1] and "first" in engine.prompts[-1]
        engine.prefills.set()
        await reader.sees(lambda record: isinstance(record.event, ev.ContextCompacted))
        await settled()
        (compacted,) = events(place, ev.ContextCompacted)
        assert compacted.summary.text == "Ana is 7." and len(engine.summaries) == 1 and fourth.response_id is not None
        assert len(engine.warmed[-1]) + len(engine.tokenizer.answer_opening) == compacted.tokens_after
        await turn(replica, reader, "5")
        assert list(engine.requests[-1].prompt[: len(engine.warmed[-1])]) == engine.warmed[-1]
        assert "Four." in engine.prompts[-1] and not events(place, ev.ContextFitted)


@virtual
@pytest.mark.parametrize("busy", [False, True])
async def test_a_prefill_that_takes_long_or_has_no_slot_leaves_the_next_turn_nothing_to_wait_for(busy: bool) -> None:
    async with Place() as place:
        engine, replica, reader = await filled(place, "Ana is 7.", "Four.", "Five.")
        engine.idle = not busy
        engine.prefills.clear()
        await turn(replica, reader, "third" + LONG[:30])
        await advance(300.0)
        assert len(engine.summaries) == 1 and not events(place, ev.ContextCompacted)
        await turn(replica, reader, "4")
        assert "first" in engine.prompts[-1]
        await advance(300.0)
        engine.idle = True
        engine.prefills.set()
        await reader.sees(lambda record: isinstance(record.event, ev.ContextCompacted))
        await settled()
        await turn(replica, reader, "5")
        assert list(engine.requests[-1].prompt[: len(engine.warmed[-1])]) == engine.warmed[-1]
        assert "Ana is 7." in engine.prompts[-1] and len(engine.summaries) == 1


@virtual
async def test_a_summary_waits_for_no_prefill_once_the_window_is_all_but_full() -> None:
    async with Place() as place:
        engine, replica, reader = await filled(place, "Ana is 7.", "Four" + LONG[:60])
        engine.prefills.clear()
        await turn(replica, reader, "third" + LONG[:30])
        await advance(1.0)
        assert not events(place, ev.ContextCompacted)
        await turn(replica, reader, "4" + LONG[:30])
        await reader.sees(lambda record: isinstance(record.event, ev.ContextCompacted))
        assert len(engine.summaries) == 1 and not events(place, ev.ContextFitted)


@virtual
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("undone", [False, True])
async def test_a_summary_that_is_undone_or_not_due_any_more_does_not_come(waits: bool, undone: bool) -> None:
    """Whether the model is still at it, or it waits for its prefill."""
    async with Place() as place:
        engine, replica, reader = await filled(place, "A summary that nobody waits for", "Four.")
        engine.prefills.clear()
        await turn(replica, reader, "third" + LONG[:30])
        await advance(1.0 if waits else 0.05)
        assert len(engine.summaries) == 1 and len(engine.warmed) == waits
        if undone:
            undo = cm.CompactionUndo(id=place.name(), session=SESSION)
            assert isinstance(await outcome(replica.do(undo)), NotFound)  # none is in force
        else:
            await replica.do(cm.SessionUpdate(id=place.name(), session=SESSION, context_policy="off"))
        engine.prefills.set()
        await advance(5.0)
        assert not events(place, ev.ContextCompacted) and len(engine.summaries) == 1


@virtual
async def test_a_summary_that_is_in_force_and_undone_does_not_come_back() -> None:
    async with Place() as place:
        _, replica, reader = await filled(place, "Ana is 7.", "Four.")
        await turn(replica, reader, "third" + LONG[:30])
        await reader.sees(lambda record: isinstance(record.event, ev.ContextCompacted))
        undo = cm.CompactionUndo(id=place.name(), session=SESSION)
        assert await replica.do(undo) == await replica.do(undo)
        await replica.do(cm.SessionWarm(id=place.name(), session=SESSION))
        await advance(5.0)
        assert len(events(place, ev.ContextCompacted)) == 1 and not place.state().compactions


@virtual
async def test_one_that_was_requested_and_is_undone_before_it_comes_is_given_up() -> None:
    async with Place() as place:
        engine = Small("One.", "Ana is 7.", "Unused.")
        replica, reader = await at_work(place, engine, "truncate")
        await turn(replica, reader, "first")
        command = cm.SessionCompact(id=place.name(), session=SESSION, keep_turns=0)
        ok = await replica.do(command)
        await advance(0.05)
        for name in (ItemId("cmp_another"), ok.compaction_id):
            assert not events(place, ev.CompactionFailed)
            undo = cm.CompactionUndo(id=place.name(), session=SESSION, compaction_id=name)
            assert isinstance(await outcome(replica.do(undo)), NotFound)
            await settled()
        (failed,) = events(place, ev.CompactionFailed)
        assert failed.compaction_id == ok.compaction_id
        assert await replica.do(command) == ok  # a repeat has nothing written
        await advance(5.0)
        assert not events(place, ev.ContextCompacted) and len(engine.summaries) <= 2


@virtual
async def test_one_that_is_written_in_pieces_says_what_all_of_them_took() -> None:
    async with Place() as place:
        turns = [f"{word} {LONG}" for word in ("One", "Two", "Three", "Four", "Five", "Six")]
        engine = Small(*turns, "Ana is 7.", "Bo is 8.", "Cy is 9.", "Di is 10.")
        replica, reader = await at_work(place, engine, "truncate")
        for word in turns:
            await turn(replica, reader, word[:4])
        ok = await replica.do(cm.SessionCompact(id=place.name(), session=SESSION))
        await reader.sees(
            lambda record: isinstance(record.event, ev.ContextCompacted) and record.event.summary.id == ok.compaction_id
        )
        *pieces, last = events(place, ev.ContextCompacted)
        assert pieces and len(engine.summaries) == len(pieces) + 1
        assert last.usage["input_tokens"] == sum(len(each.prompt) for each in engine.summaries)
        assert last.usage["output_tokens"] > pieces[0].usage["output_tokens"] > 0


@virtual
async def test_one_that_the_filters_withhold_says_what_it_took() -> None:
    async with Place() as place:
        engine, filters = Small("One.", "A forbidden word"), KeywordFilterSet(output_phrases=["forbidden"])
        replica, reader = await at_work(place, engine, "truncate", filters=filters)
        await turn(replica, reader, "first")
        await replica.do(cm.SessionCompact(id=place.name(), session=SESSION, keep_turns=0))
        await reader.sees(lambda record: isinstance(record.event, ev.CompactionFailed))
        (private,) = [each.private for each in place.records() if isinstance(each.event, ev.CompactionFailed)]
        assert private is not None and private.spent > len(engine.summaries[0].prompt)


@virtual
async def test_what_is_taken_back_later_takes_the_summary_with_it() -> None:
    async with Place() as place:
        engine, replica, reader = await filled(place, "The secret is out.", "Nothing of it.", "Four.", "And this.")
        await turn(replica, reader, "third" + LONG[:30])
        await reader.sees(lambda record: isinstance(record.event, ev.ContextCompacted))
        await settled()
        (item, *_) = [each.item.id for each in events(place, ev.ItemCreated)]
        await replica.do(cm.ItemDelete(id=place.name(), session=SESSION, item_id=item))
        (compacted,) = events(place, ev.ContextCompacted)
        taken = [each.item_id for each in events(place, ev.ContentRetracted)]
        assert compacted.summary.id in taken
        await settled()
        assert not any("secret" in each.summary.text for each in place.state().compactions.values())
        await turn(replica, reader, "and now?")
        assert "secret" not in engine.prompts[3 + 2] and "and now?" in engine.prompts[3 + 2]


@virtual
async def test_a_summary_that_the_filters_withhold_is_thrown_away_and_the_window_is_cut() -> None:
    async with Place() as place:
        filters = KeywordFilterSet(output_phrases=["forbidden"])
        engine, replica, reader = await filled(place, "A forbidden word", "Four.", "Forbidden", filters=filters)
        await turn(replica, reader, "third" + LONG[:30])
        await advance(5.0)
        assert not events(place, ev.ContextCompacted)
        await turn(replica, reader, "fourth" + LONG)
        assert events(place, ev.ContextFitted) and "first" not in engine.prompts[-1]


@virtual
async def test_a_command_requests_one_that_keeps_as_many_turns_as_it_says() -> None:
    async with Place() as place:
        engine = Small("One.", "Two.", "Ana is 7.", "Three.")
        replica, reader = await at_work(place, engine, "truncate")
        for word in ("first", "second"):
            await turn(replica, reader, word)
        ok = await replica.do(cm.SessionCompact(id=place.name(), session=SESSION))
        await reader.sees(lambda record: isinstance(record.event, ev.ContextCompacted))
        (compacted,) = events(place, ev.ContextCompacted)
        assert compacted.summary.id == ok.compaction_id and compacted.cause == "command" and compacted.items == 2
        again = await replica.do(cm.SessionCompact(id=place.name(), session=SESSION))
        await reader.sees(lambda record: isinstance(record.event, ev.CompactionFailed))
        (failed,) = events(place, ev.CompactionFailed)
        assert failed.compaction_id == again.compaction_id and failed.error["code"] == "nothing_to_compact"
        await replica.do(cm.CompactionUndo(id=place.name(), session=SESSION))
        await turn(replica, reader, "third")
        assert "Ana" not in engine.prompts[-1] and "first" in engine.prompts[-1]


def outcomes(place: Place) -> list[tuple[type[Any], ItemId]]:
    summaries = [(ev.ContextCompacted, each.summary.id) for each in events(place, ev.ContextCompacted)]
    return summaries + [(ev.CompactionFailed, each.compaction_id) for each in events(place, ev.CompactionFailed)]


@virtual
async def test_a_request_whose_summary_an_answer_overtakes_is_given_up() -> None:
    async with Place() as place:
        engine = Small("One.", "Ana is 7.", "Two.")
        replica, reader = await at_work(place, engine, "truncate")
        await turn(replica, reader, "first")
        ok = await replica.do(cm.SessionCompact(id=place.name(), session=SESSION, keep_turns=0))
        actor = replica.runtime.actor(KEY)
        assert actor is not None and ok.compaction_id is not None
        replica.faults.slow("append", 5.0)
        actor.post(TitleWritten("a title", actor.top))  # the summary is ready while this is being appended
        await settled()
        second = await replica.say("second")
        await reader.ended(second.response_id)
        await advance(60.0)
        assert outcomes(place) == [(ev.CompactionFailed, ok.compaction_id)]
        (private,) = [each.private for each in place.records() if isinstance(each.event, ev.CompactionFailed)]
        assert private is not None and private.spent > len(engine.summaries[0].prompt)


@virtual
async def test_a_request_that_is_taken_while_the_session_leaves_is_given_up() -> None:
    async with Place() as place:
        replica, reader = await at_work(place, Small("One.", "Ana is 7."), "truncate")
        await turn(replica, reader, "first")
        actor = replica.runtime.actor(KEY)
        assert actor is not None
        replica.faults.slow("append", 5.0)
        asked = asyncio.create_task(replica.do(cm.SessionCompact(id=place.name(), session=SESSION, keep_turns=0)))
        await settled()
        await actor.passivate()
        assert outcomes(place) == [(ev.CompactionFailed, (await asked).compaction_id)]


@virtual
async def test_a_pin_of_an_item_that_is_not_there_is_refused_as_such() -> None:
    async with Place() as place:
        _, replica, _ = await filled(place, "Ana is 7.", "Four.")
        pin = replica.do(cm.ItemPin(id=place.name(), session=SESSION, item_id=ItemId("msg_deleted")))
        refused = await outcome(pin)
        assert isinstance(refused, NotFound) and refused.code == "item_not_found"


@pytest.mark.parametrize(
    ("written", "cut_short", "summary"),
    [
        ("<think>so</think> - Ana is 7.\n", False, "- Ana is 7."),
        ("- Ana is 7.\n- Bo li", True, "- Ana is 7."),
        ("one long line", True, "one long line"),
        ("I help. I help. I help. Ana is 7.", False, "I help. Ana is 7."),
        ("<think>without an end", False, ""),
        ("Ana is 7.<|end|><|start|>assistant<|channel|>final<|message|>More.", False, "Ana is 7."),
        ('<tool_call>{"name": "look"}</tool_call>', False, ""),
    ],
)
def test_what_a_model_wrote_is_cleaned(written: str, cut_short: bool, summary: str) -> None:
    assert cleaned(written, cut_short=cut_short) == summary


async def titles_at_work(place: Place, engine: Recording, *, on: bool = True, **more: Any) -> tuple[Replica, Reader]:
    def titles(tenant: TenantId) -> bool:
        return on

    limits = RuntimeLimits(actor=ActorLimits(titles=titles))
    replica = await place.replica(engine=engine, limits=limits, **more)
    return replica, place.read(replica)


def named(place: Place) -> list[str | None]:
    return [record.event.info.title for record in place.records() if isinstance(record.event, ev.SessionUpdated)]


@virtual
async def test_the_model_names_a_session_after_its_first_answer() -> None:
    async with Place() as place:
        engine = Recording("It takes flour.", ' Title: "How to bake **bread**."\nand more', "Thank you.")
        replica, reader = await titles_at_work(place, engine)
        await replica.create()
        answer = await replica.say("how do I bake bread")
        await reader.sees(lambda record: isinstance(record.event, ev.SessionUpdated))
        assert named(place) == ["How to bake bread"] and place.head().title == "How to bake bread"
        assert [row.response_id for row in usage_in(place.store)] == [answer.response_id]  # nobody pays
        first, title = engine.requests
        assert title.priority == TITLE_PRIORITY and title.max_tokens <= 24 and title.key == first.key
        assert list(title.prompt[: len(first.prompt)]) == list(first.prompt)  # whose KV is there
        assert PROMPT in engine.prompts[1]
        again = await replica.say("thanks")
        await reader.ended(again.response_id)
        await settled()
        assert len(named(place)) == 1 and PROMPT not in engine.prompts[2]


@virtual
async def test_requests_over_openais_api_give_no_title() -> None:
    async with Place() as place:
        replica, reader = await titles_at_work(place, Recording("An answer.", "A title"))
        turn = cm.TurnCreate(
            id=place.name(),
            session=SESSION,
            create=cm.SessionSettings(),
            items=(cm.NewMessage(content="hello"),),
            request={"model": "m"},
        )
        await reader.ended((await replica.do(turn)).response_id)
        await advance(5.0)
        assert named(place) == [] and place.head().listed


@virtual
async def test_a_title_that_a_user_gave_meanwhile_stands() -> None:
    async with Place() as place:
        replica, reader = await titles_at_work(place, Recording("An answer.", "A title of the model"))
        await replica.create()
        await reader.ended((await replica.say()).response_id)
        await replica.do(cm.SessionUpdate(id=place.name(), session=SESSION, title="mine"))
        await advance(5.0)
        assert named(place) == ["mine"] and place.head().title == "mine"


@virtual
@pytest.mark.parametrize("how", ["item", "answer"])
@pytest.mark.parametrize("given", [False, True])
async def test_a_title_that_the_server_made_goes_with_what_it_was_made_of(how: str, given: bool) -> None:
    async with Place() as place:
        replica, reader = await titles_at_work(place, Recording("One.", "A secret"))
        await replica.create()
        answer = await replica.say("a secret")
        await reader.sees(lambda record: isinstance(record.event, ev.SessionUpdated))
        if given:
            await replica.do(cm.SessionUpdate(id=place.name(), session=SESSION, title="A secret"))
        items = [record.event.item.id for record in place.records() if isinstance(record.event, ev.ItemCreated)]
        assert answer.response_id is not None
        if how == "item":
            await replica.do(cm.ItemDelete(id=place.name(), session=SESSION, item_id=items[0]))
        else:
            await replica.do(cm.ResponseErase(id=place.name(), session=SESSION, response_id=answer.response_id))
        assert named(place)[1:] == (["A secret"] if given else [None])
        assert place.head().title == ("A secret" if given else None)


@virtual
@pytest.mark.parametrize("script", ["<think>the user asks", "", "A forbidden word"])
async def test_what_is_no_title_or_is_filtered_leaves_the_first_words(script: str) -> None:
    async with Place() as place:
        filters = KeywordFilterSet(output_phrases=["forbidden"])
        replica, reader = await titles_at_work(place, Recording("An answer.", script), filters=filters)
        await replica.create()
        await replica.say("how do  I\nbake bread")
        await reader.sees(lambda record: isinstance(record.event, ev.SessionUpdated))
        assert named(place) == ["how do I bake bread"]


@virtual
async def test_first_words_are_the_users_not_a_files() -> None:
    async with Place() as place:
        replica, reader = await titles_at_work(place, Recording("An answer.", ""))
        await replica.create()
        file = InputFile(filename="pay.txt", text="Confidential salaries")
        await replica.do(
            cm.MessageCreate(id=place.name(), session=SESSION, content=(file, InputText(text="Who earns most?")))
        )
        await reader.sees(lambda record: isinstance(record.event, ev.SessionUpdated))
        assert named(place) == ["Who earns most?"]


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ("\n  Baking bread \n", "Baking bread"),
        ("**Title:** “Baking bread”.", "Baking bread"),
        ("# Baking bread", "Baking bread"),
        ("...", ""),
        ("", ""),
        ("<b>Baking</b>", ""),
        ("a\x1b[31m\u202eb", ""),
        ("Straße\tund Brücke", "Straße und Brücke"),
    ],
)
def test_what_a_model_wrote_as_a_title(written: str, title: str) -> None:
    assert cleaned_title(written) == title


def test_long_titles_are_cut_between_words() -> None:
    long = first_words("word " * 40)
    assert len(long) <= LENGTH_MAX and long.endswith("word…")
    assert len(first_words("x" * 500)) == LENGTH_MAX
