"""Commands made ready for the machine: filtered, limited in size, tokenised; what fails refuses the command alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sessions.actor.actor_context import ActorLimits
from sessions.actor.input_pipeline import prepare_input
from sessions.machine.inputs_and_effects import Command
from sessions.machine.state import empty
from sessions.metrics import Metrics
from sessions.model import commands as cm
from sessions.model.types import LOCAL_PRINCIPAL, CallId, CommandId, InputText, Principal, TenantId, TextOptions
from sessions.model.verdicts import Finding, Verdict
from sessions.turn.ledger import Ledger
from tests.support.engines.sampling_fields import each_field
from tests.support.machine.ledger_fixture import Desk, info
from tests.support.machine.machine_fixture import KEY, SESSION
from tests.support.virtual_time import virtual

ID = CommandId("c")


class Replace:
    """Redacts "red", blocks "black", breaks at "bug", never returns at "slow"."""

    async def check(self, principal: Principal, text: str) -> Verdict:
        if "bug" in text:
            raise ZeroDivisionError
        if "slow" in text:
            await asyncio.get_running_loop().create_future()
        for word, action in (("black", "block"), ("red", "redact")):
            at = text.find(word)
            if at >= 0:
                found: Any = Finding(category="c", action=action, start=at, end=at + len(word))  # type: ignore[arg-type]
                replaced: Any = action
                return Verdict(action=replaced, start=at, end=at + len(word), replacement="~", findings=(found,))
        return Verdict(action="pass")

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        return Verdict(action="pass")


async def prepared(command: cm.ActorCommand, *memories: str, begun: bool = True) -> Command:
    """By a user who has written down `memories`, for a session that has `begun` or not."""

    async def read(tenant: TenantId, user: str) -> tuple[str, ...]:
        return memories

    filters = SimpleNamespace(input_filters=lambda principal: (Replace(),))
    limits = ActorLimits(content_bytes=40, prepare_s=5.0)
    engine = SimpleNamespace(info=info())
    world: Any = SimpleNamespace(
        filters=filters, limits=limits, metrics=Metrics(), memories=read, tools=None, knowledge=None, engine=engine
    )
    input = Command(msgspec.structs.replace(LOCAL_PRINCIPAL, user="ana"), command, cm.command_digest(command))
    desk = Desk()
    ledger = desk.ledger if begun else Ledger(empty(KEY, user="ana"), desk.tokenizer, info())
    return await prepare_input(input, ledger=ledger, context=world)


def message(content: str) -> cm.MessageCreate:
    return cm.MessageCreate(id=ID, session=SESSION, content=content)


@virtual
async def test_a_message_is_redacted_and_tokenised() -> None:
    made = await prepared(message("a red rose"))
    assert isinstance(made.command, cm.MessageCreate) and made.command.content == (InputText(text="a ~ rose"),)
    assert made.prepared is not None and made.prepared.tokens and made.refused is None
    assert [each.text for each in made.findings] == ["red"]


@virtual
@pytest.mark.parametrize(
    ("content", "code"),
    [("black", "content_filter"), ("x" * 41, "content_too_large"), ("slow", "overloaded"), ("bug", "internal_error")],
)
async def test_what_fails_refuses_the_command(content: str, code: str) -> None:
    made = await prepared(message(content))
    assert made.refused is not None and made.refused.code == code
    assert made.prepared is None


@virtual
async def test_a_turn_has_tokens_beside_each_item_but_for_answers_with_calls() -> None:
    call_id = CallId("x")
    items = (
        cm.NewMessage(role="user", content="red"),
        cm.NewMessage(role="assistant", content="let me look"),
        cm.NewCall(call_id=call_id, name="look", arguments="{}"),
        cm.NewOutput(call_id=call_id, output="red"),
    )
    settings = cm.SessionSettings(instructions="red")
    made = await prepared(cm.TurnCreate(id=ID, session=SESSION, items=items, create=settings, instructions="red"))
    assert [each is not None for each in made.prepared_items] == [True, False, False, True]
    assert isinstance(made.command, cm.TurnCreate) and made.command.create is not None
    assert made.command.create.instructions == made.command.instructions == "~"
    output = made.command.items[3]
    assert isinstance(output, cm.NewOutput) and output.output == "~"


@virtual
async def test_an_appeal_is_blocked_where_filters_refuse_its_text() -> None:
    appeal = cm.ReviewAppeal(id=ID, session=SESSION, content="black", note="")
    assert (await prepared(appeal)).blocked
    assert not (await prepared(msgspec.structs.replace(appeal, content="white"))).blocked


@virtual
async def test_what_a_conversation_begins_with_is_filtered_and_only_its_creation_reads_it() -> None:
    listed, unlisted = (cm.SessionSettings(listed=each) for each in (True, False))
    commands: list[tuple[cm.ActorCommand, tuple[str, ...]]] = [
        (cm.SessionCreate(id=ID), ("a ~ rose",)),
        (cm.TurnCreate(id=ID, session=SESSION, create=listed), ("a ~ rose",)),
        (cm.TurnCreate(id=ID, session=SESSION, create=unlisted), ()),
    ]
    for command, kept in commands:
        assert (await prepared(command, "a red rose", "black", begun=False)).memories == kept
        assert (await prepared(command, "a red rose", "black")).memories == ()
    assert (await prepared(message("a rose"), "a red rose")).memories == ()


@virtual
@pytest.mark.parametrize("field", each_field())
async def test_a_field_that_the_engine_does_not_honour_refuses_the_command_by_its_name(field: str) -> None:
    sampling = msgspec.structs.asdict(each_field()[field])
    refused = (await prepared(cm.MessageCreate(id=ID, session=SESSION, content="rose", **sampling))).refused
    assert refused is not None and (refused.code, refused.param) == ("unsupported_parameter", field)


@virtual
async def test_a_value_that_asks_for_nothing_is_honoured_by_every_engine() -> None:
    nothing: dict[str, Any] = {"top_k": 0, "min_p": 0.0, "top_p": 1.0, "repeat_penalty": 1.0, "logit_bias": {}}
    nothing |= {"frequency_penalty": 0.0, "presence_penalty": 0.0, "min_tokens": 0, "top_logprobs": 0}
    nothing["text"] = TextOptions({"type": "text"})
    assert (await prepared(cm.MessageCreate(id=ID, session=SESSION, content="rose", **nothing))).refused is None


@virtual
async def test_a_field_about_thoughts_is_refused_where_the_model_has_none_but_of_openais_endpoints_which_warn() -> None:
    for field, value in {"thinking": True, "thinking_tokens": 9, "effort": "low"}.items():
        given: dict[str, Any] = {"id": ID, "session": SESSION, field: value}
        refused = (await prepared(cm.MessageCreate(content="rose", **given))).refused
        assert refused is not None and (refused.code, refused.param) == ("unsupported_parameter", field)
        assert (await prepared(cm.TurnCreate(**given))).refused is None
    assert (await prepared(cm.MessageCreate(id=ID, session=SESSION, content="rose", thinking=False))).refused is None
