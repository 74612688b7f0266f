"""What filters of a replica do to messages and answers, with the machine, the journal and readers as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from inference.simulated import SimulatedEngine, SimulatedOptions, decode
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, NotFound
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import Principal, unpack_tokens
from sessions.ports import FilterSet
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.cluster.replicas import KEY, SESSION, Place
from tests.support.output_text import Redactor
from tests.support.virtual_time import outcome, virtual


@virtual
async def test_a_strangers_message_is_not_judged_beside_what_stands_there() -> None:
    async with Place() as place:
        replica = await place.replica(filters=KeywordFilterSet(input_phrases=["red rose"]))
        ana, bob = (Principal(tenant=KEY.tenant, key_id="key", user=user) for user in ("ana", "bob"))
        await replica.do(cm.SessionCreate(id=place.name(), session=SESSION), ana)
        for principal, error in ((ana, BadInput), (bob, NotFound)):
            message = cm.MessageCreate(id=place.name(), session=SESSION, content="a red rose")
            assert isinstance(await outcome(replica.do(message, principal)), error)
        assert place.head().top == 1


@virtual
async def test_a_forbidden_phrase_never_reaches_the_log() -> None:
    """The phrase is taken from the middle of what the engine would say."""
    async with Place(SimulatedOptions(answer_tokens_mean=80)) as place:
        replica = await place.replica("r0")
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("where is the river")
        await reader.ended(answer.response_id)
        whole = reader.text(answer.response_id)
        await replica.delete()
    phrase = whole[len(whole) // 2 :][:9]
    async with Place(SimulatedOptions(answer_tokens_mean=80)) as place:
        replica = await place.replica("r0", filters=KeywordFilterSet(output_phrases=[phrase]))
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("where is the river")
        ended = await reader.ended(answer.response_id)
        assert ended.response.incomplete_details == {"reason": "content_filter"}
        assert reader.text(answer.response_id) == whole[: whole.lower().index(phrase.lower())]
        state = place.state()
        ledger = state.answers[answer.response_id]  # type: ignore[index]
        tokens = len(ledger.tokens) // 4
        follow_up = await replica.say("go on")
        await reader.delta(follow_up.response_id)
        assert tokens > 0
        assert not any(phrase.lower() in str(record).lower() for record in place.records())


class Redacting:
    """A policy that replaces a phrase in every answer."""

    def __init__(self, phrase: str, replacement: str) -> None:
        self._phrase, self._replacement = phrase, replacement

    def input_filters(self, principal: Principal) -> tuple[()]:
        return ()

    def holds_whole(self, principal: Principal) -> bool:
        return False

    def version(self, principal: Principal) -> str:
        return "test"

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> tuple[Redactor]:
        return (Redactor(self._phrase, self._replacement),)


class Watched(SimulatedEngine):
    """Notes how much room each run leaves in the window."""

    def __init__(self, options: SimulatedOptions) -> None:
        super().__init__(options)
        self.rooms: list[int] = []

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self.rooms.append(self.info.context_window - len(request.prompt) - request.max_tokens)
        async for part in super().generate(request):
            yield part


SMALL = SimulatedOptions(answer_tokens_mean=0, context_window=160)


async def answer_under(filters: FilterSet, engine: SimulatedEngine) -> ev.Terminal:
    """The end of an answer under a policy; its ledger stands for its text."""
    async with Place(SMALL) as place:
        replica = await place.replica(filters=filters, engine=engine)
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("where is the river")
        ended = await reader.ended(answer.response_id)
        ledger = place.state().answers[answer.response_id]  # type: ignore[index]
        assert decode(unpack_tokens(ledger.tokens)) + ledger.tail == reader.text(answer.response_id)
        return ended


def text_in(ended: ev.Terminal) -> str:
    return ended.response.output[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("replacement", ["[x]", "…and a great deal more than there was before it…"])
@virtual
async def test_a_redacted_answer_goes_on_from_its_replacement(replacement: str) -> None:
    untouched = text_in(await answer_under(KeywordFilterSet(), SimulatedEngine(SMALL)))
    phrase, engine = untouched[40:45], Watched(SMALL)
    text = text_in(await answer_under(Redacting(phrase, replacement), engine))
    at = untouched.index(phrase)
    assert text.startswith(untouched[:at] + replacement)
    assert phrase not in text and len(text) > at + len(replacement)
    assert len(engine.rooms) > 1 and min(engine.rooms) >= 0, "no run is asked for more than the window has room for"


@virtual
async def test_a_model_that_insists_on_what_is_redacted_is_ended() -> None:
    """Nothing in its place: the same model says the same again, and not for ever."""
    untouched = text_in(await answer_under(KeywordFilterSet(), SimulatedEngine(SMALL)))
    phrase = untouched[40:45]
    ended = await answer_under(Redacting(phrase, ""), SimulatedEngine(SMALL))
    assert ended.response.incomplete_details == {"reason": "content_filter"}
    assert text_in(ended) == untouched[: untouched.index(phrase)]
