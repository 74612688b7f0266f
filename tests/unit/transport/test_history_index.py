"""Sessions without asking: whose history is found by whom, how often, for a day, within a bound."""

from __future__ import annotations

import pytest

from sessions.model import commands as cm
from sessions.model.types import LOCAL_PRINCIPAL, CallId, ItemId, Principal, SessionId, TenantId, Tool
from transport.history_index import (
    GIVEN_TTL_S,
    HistoryPlace,
    MemoryHistory,
    Unit,
    caller_of,
    chain_root,
    extend_chain_all,
    find_history,
    opening_of,
)

ASK = Unit((cm.NewMessage(content="hello"),))
ANSWER = Unit((cm.NewMessage(role="assistant", content="hi"),), answer=True)
MORE = Unit((cm.NewMessage(content="more"),))
TOOL = Tool(name="f")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def start(principal: Principal = LOCAL_PRINCIPAL, user: str | None = None, **more: object) -> bytes:
    given: dict[str, object] = {"model": "m", "tools": (), "instructions": None, **more}
    return chain_root(principal, user, **({"listed": False} | given))  # type: ignore[arg-type]


def test_what_is_not_stored_is_never_found_in_a_listed_session() -> None:
    assert start() == start(listed=False) != start(listed=True)


def place(name: str) -> HistoryPlace:
    return HistoryPlace(SessionId(name), ItemId("msg_1"))


async def test_an_answer_that_its_client_changed_is_a_branch_from_its_question() -> None:
    index = MemoryHistory(Clock())
    question, answer = extend_chain_all(start(), [ASK, ANSWER])
    await index.put(question, place("question"))
    await index.put(answer, place("answer"))
    for changed in ("", "h", "hi ", "other words"):
        units = [ASK, Unit((cm.NewMessage(role="assistant", content=changed),), answer=True), MORE]
        found = await find_history(index, extend_chain_all(start(), units), units)
        assert found is not None and (found.place, found.units) == (place("question"), 1)
    units = [ASK, ANSWER, MORE]
    found = await find_history(index, extend_chain_all(start(), units), units)
    assert found is not None and (found.place, found.units) == (place("answer"), 2)


def test_whatever_differs_leads_elsewhere() -> None:
    other = Principal(tenant=TenantId("other"), key_id="local", role="operator")
    starts = [
        start(),
        start(other),
        start(user="ann"),
        start(user="bob"),
        start(model="n"),
        start(tools=(TOOL,)),
        start(instructions=""),
        start(instructions="be brief"),
    ]
    calls = Unit((cm.NewCall(call_id=CallId("c"), name="f", arguments="{}"),), answer=True)
    said = [Unit((cm.NewMessage(role=role, content="hello"),)) for role in ("user", "system", "developer")]
    ends = [extend_chain_all(each, [ASK, ANSWER])[-1] for each in starts]
    ends += [extend_chain_all(start(), [each])[-1] for each in (ASK, MORE, ANSWER, calls)]
    assert len(set(ends)) == len(ends)
    assert len({extend_chain_all(start(), [each])[-1] for each in said}) == 3
    assert extend_chain_all(start(), [ASK, ANSWER])[0] == extend_chain_all(start(), [ASK, MORE])[0]


async def test_of_too_many_those_go_first_that_somebody_has_gone_on_from() -> None:
    index = MemoryHistory(Clock(), places_max=10)
    for number in range(10):
        await index.put(f"{number}".encode(), place(f"{number}"))
    for number in (9, 7):
        assert await index.take([f"{number}".encode()]) == (0, place(f"{number}"))
    for number in range(10, 13):
        await index.put(f"{number}".encode(), place(f"{number}"))
    left = [number for number in range(13) if await index.take([f"{number}".encode()])]
    assert left == [1, 2, 3, 4, 5, 6, 8, 10, 11, 12]


async def test_what_was_given_is_let_go_of_after_its_hour_though_nobody_asks() -> None:
    clock = Clock()
    index = MemoryHistory(clock)
    for number in range(20):
        await index.put(f"{number}".encode(), place("a"))
        await index.take([f"{number}".encode()])
    await index.put(b"live", place("b"))
    clock.now = GIVEN_TTL_S
    await index.put(b"more", place("c"))
    assert len(index) == 2 and not index._given


def test_what_a_history_begins_with_is_marked_from_the_whole_down_to_the_beginnings_of_its_instructions() -> None:
    caller = caller_of(LOCAL_PRINCIPAL, None, "m")

    def marks(instructions: str, *units: Unit) -> list[bytes]:
        root = start(instructions=instructions)
        return opening_of(caller, instructions, root, extend_chain_all(root, units)).marks

    whole = marks("x" * 200, ASK, ANSWER)
    assert len(whole) == len(set(whole)) == 6 and whole[-1] == caller, "two messages, the root, 128, 64, the caller"
    assert marks("x" * 200, ASK, MORE)[1:] == whole[1:], "the first message on"
    assert marks("x" * 200 + "y", ASK, ANSWER)[3:] == whole[3:], "its end changed"
    assert marks("x" * 100, ASK)[2:] == whole[4:]
    assert marks("", ASK)[-1] == caller
    others = [caller_of(LOCAL_PRINCIPAL, "u", "m"), caller_of(LOCAL_PRINCIPAL, None, "n")]
    others.append(caller_of(Principal(tenant=TenantId("t"), key_id="local"), None, "m"))
    assert len({caller, *others}) == 4


def test_callers_differ_however_their_names_are_put_together() -> None:
    tenant = TenantId("t")
    callers = [
        Principal(tenant=tenant, key_id="jwt:https://idp/a", user="x"),
        Principal(tenant=tenant, key_id="jwt:https://idp", user="a/x"),
        Principal(tenant=tenant, key_id="jwt:https://idp/a/x"),
    ]
    assert len({start(each) for each in callers}) == len({caller_of(each, None, "m") for each in callers}) == 3


def _answered(arguments: str, call_id: str = "call_1") -> bytes:
    """The chain behind a call and its output."""
    call = cm.NewCall(call_id=CallId(call_id), name="f", arguments=arguments)
    output = cm.NewOutput(call_id=CallId(call_id), output="done")
    return extend_chain_all(start(), [ASK, Unit((call,), answer=True), Unit((output,))])[-1]


SPELLINGS = [
    ['{"a": "b"}', '{"a":"b"}', '\n{ "a" :\t"b" }\n', '{"a":"\\u0062"}', '{"\\u0061":"b"}', '{"a":"c","a":"b"}'],
    ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a":1.0,"b":2e0}', '{"a":1E0,"b":0.2e1}', '{"a":10e-1,"b":2.00}'],
    ['{"a":true}', '{ "a": true }'],
    ['{"a":[1]}', '{"a":[1.0]}'],
    ['{"a":1}', '{"a":1.0}'],
    ['{"a":"1"}'],
    ['{"a":0}', '{"a":-0}', '{"a":-0.0}', '{"a":0e5}'],
    ['{"a":false}'],
    ['{"a":null}'],
    ['{"a":0.1}', '{"a":0.10}', '{"a":1e-1}'],
    ['{"a":1234567890123456789}', '{"a": 1234567890123456789}'],
    ['{"a":1234567890123456788}'],
    ['{"a":100000000000000000000000}', '{"a":1e23}', '{"a":1e+23}'],
    ['{"a":"ü/"}', '{"a":"\\u00fc\\/"}'],
    ['{"a":"\\ud800"}', '{"a": "\\ud800"}'],
    ['{"a":"\\ud83d\\ude00"}', '{"a":"😀"}'],
    ['{"a":NaN}'],
    ['{"a": NaN}'],
    ['{"a":1e999}'],
    ['{"a":2e999}'],
    ['{"a": '],
    ['{"a":'],
    [""],
    ["{}", "{ }"],
    ["[]"],
    ['"{}"'],
]


def test_arguments_are_the_same_words_if_they_are_the_same_json_value() -> None:
    chains = [{_answered(spelling) for spelling in spellings} for spellings in SPELLINGS]
    assert [len(each) for each in chains] == [1] * len(SPELLINGS)
    assert len(set().union(*chains)) == len(SPELLINGS)


@pytest.mark.parametrize(
    ("bomb", "other"),
    [
        ("[" * 500_000, "[" * 500_001),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, '{"a": ' * 100_000 + "1" + "}" * 100_000),
        ("[" + "1," * 100_000 + "1]", "[" + "1, " * 100_000 + "1]"),
        ('{"a":' + "1" * 1_000_000 + "}", '{"a":' + "2" * 1_000_000 + "}"),
    ],
)
def test_arguments_that_are_too_much_to_read_are_compared_as_they_are_written(bomb: str, other: str) -> None:
    assert _answered(bomb) == _answered(bomb) != _answered(other)


def test_calls_are_the_same_under_other_ids_that_are_used_throughout() -> None:
    def chain(first: str, second: str, *outputs: str) -> bytes:
        calls = (cm.NewCall(call_id=CallId(name), name="f", arguments="{}") for name in (first, second))
        answered = [Unit((cm.NewOutput(call_id=CallId(name), output=f"{at}"),)) for at, name in enumerate(outputs)]
        return extend_chain_all(start(), [ASK, Unit(tuple(calls), answer=True), *answered])[-1]

    assert chain("a", "b", "a", "b") == chain("x", "a", "x", "a") == chain("b", "a", "b", "a")
    assert len({chain("a", "b", *outputs) for outputs in ("ab", "ba", "a", "b", "ac")}) == 5
