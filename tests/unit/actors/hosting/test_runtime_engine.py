"""Engines that die, break or cannot read a message: a response fails, and nothing else does."""

from __future__ import annotations

from structlog.testing import capture_logs

from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model import events as ev
from sessions.model.errors import BadInput, SessileError
from sessions.model.generation import GenerationRequest
from tests.support.cluster.replicas import Place
from tests.support.virtual_time import outcome, virtual


@virtual
async def test_a_bug_in_the_engine_is_the_responses_failure() -> None:
    class Broken(SimulatedEngine):
        def draw(self, stream: object) -> int | None:
            raise ZeroDivisionError

        async def generate(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError
            yield

    async with Place() as place:
        replica = await place.replica(engine=Broken(place.options))
        reader = place.read(replica)
        await replica.create()
        with capture_logs() as logs:
            answer = await replica.say()
            ended = await reader.ended(answer.response_id)
        assert ended.response.error is not None and ended.response.error["code"] == "engine_failed"
        assert [each["event"] for each in logs if each["log_level"] == "error"] == ["engine_failed"], (
            "and is told to us"
        )


@virtual
async def test_a_bug_in_the_tokenizer_refuses_the_message_and_spares_the_session() -> None:
    """Every accepted command gets an answer, and what runs beside it goes on."""

    class Picky(SimulatedEngine):
        pass

    async with Place(SimulatedOptions(answer_tokens_mean=60)) as place:
        engine = Picky(place.options)
        replica = await place.replica(engine=engine)
        reader = place.read(replica)
        await replica.create()
        answer = await replica.say("one")
        await reader.delta(answer.response_id)

        async def broken(message: object) -> tuple[int, ...]:
            raise ZeroDivisionError

        engine.tokenizer.message = broken  # type: ignore[method-assign]
        refused = await outcome(replica.say("two", queue=True))
        assert isinstance(refused, SessileError) and refused.status == 500
        assert isinstance(await reader.ended(answer.response_id), ev.ResponseCompleted)


@virtual
async def test_what_a_store_cannot_hold_is_refused_with_its_own_error() -> None:
    async with Place() as place:
        replica = await place.replica()
        refused = await outcome(replica.create(model="a\0b"))
        assert isinstance(refused, BadInput) and refused.code == "invalid_text"
        assert (await replica.create()).offset == 1
