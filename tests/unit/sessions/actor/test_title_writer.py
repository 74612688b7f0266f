"""Titles: made by the session's model after its first answer, judged, given once, and never in anybody's way."""

from __future__ import annotations

from typing import Any

import pytest

from actors.hosting.runtime import RuntimeLimits
from sessions.actor.actor_context import ActorLimits
from sessions.actor.title_writer import LENGTH_MAX, PRIORITY, PROMPT, cleaned, first_words
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.generation import GenerationRequest
from sessions.model.types import InputFile, InputText, ResponseId, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.cluster.replicas import SESSION, Place, Reader, Replica
from tests.support.scripted import Scripted
from tests.support.virtual_time import advance, settled, virtual


class Recording(Scripted):
    def __init__(self, *scripts: str) -> None:
        super().__init__(list(scripts), dict[ResponseId, str]())
        self.requests: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> Any:
        self.requests.append(request)
        async for part in super().generate(request):
            yield part


async def at_work(place: Place, engine: Recording, *, on: bool = True, **more: Any) -> tuple[Replica, Reader]:
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
        replica, reader = await at_work(place, engine)
        await replica.create()
        answer = await replica.say("how do I bake bread")
        await reader.sees(lambda record: isinstance(record.event, ev.SessionUpdated))
        assert named(place) == ["How to bake bread"] and place.head().title == "How to bake bread"
        assert [row.response_id for row in place.store.usage_rows.values()] == [answer.response_id]  # nobody pays
        first, title = engine.requests
        assert title.priority == PRIORITY and title.max_tokens <= 24 and title.key == first.key
        assert list(title.prompt[: len(first.prompt)]) == list(first.prompt)  # whose KV is there
        assert PROMPT in engine.prompts[1]
        again = await replica.say("thanks")
        await reader.ended(again.response_id)
        await settled()
        assert len(named(place)) == 1 and PROMPT not in engine.prompts[2]


@virtual
async def test_requests_over_openais_api_give_no_title() -> None:
    async with Place() as place:
        replica, reader = await at_work(place, Recording("An answer.", "A title"))
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
        replica, reader = await at_work(place, Recording("An answer.", "A title of the model"))
        await replica.create()
        await reader.ended((await replica.say()).response_id)
        await replica.do(cm.SessionUpdate(id=place.name(), session=SESSION, title="mine"))
        await advance(5.0)
        assert named(place) == ["mine"] and place.head().title == "mine"


@virtual
async def test_what_is_taken_back_meanwhile_names_nothing() -> None:
    async with Place() as place:
        replica, reader = await at_work(place, Recording("One.", "A title of a secret"))
        await replica.create()
        answer = await replica.say("a secret")
        await reader.ended(answer.response_id)
        await advance(0.05)  # the model is at it
        items = [record.event.item.id for record in place.records() if isinstance(record.event, ev.ItemCreated)]
        await replica.do(cm.ItemDelete(id=place.name(), session=SESSION, item_id=items[0]))
        await advance(5.0)
        assert named(place) == []


@virtual
@pytest.mark.parametrize("how", ["item", "answer"])
@pytest.mark.parametrize("given", [False, True])
async def test_a_title_that_the_server_made_goes_with_what_it_was_made_of(how: str, given: bool) -> None:
    async with Place() as place:
        replica, reader = await at_work(place, Recording("One.", "A secret"))
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
        replica, reader = await at_work(place, Recording("An answer.", script), filters=filters)
        await replica.create()
        await replica.say("how do  I\nbake bread")
        await reader.sees(lambda record: isinstance(record.event, ev.SessionUpdated))
        assert named(place) == ["how do I bake bread"]


@virtual
async def test_first_words_are_the_users_not_a_files() -> None:
    async with Place() as place:
        replica, reader = await at_work(place, Recording("An answer.", ""))
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
    assert cleaned(written) == title


def test_long_titles_are_cut_between_words() -> None:
    long = first_words("word " * 40)
    assert len(long) <= LENGTH_MAX and long.endswith("word…")
    assert len(first_words("x" * 500)) == LENGTH_MAX
