"""What routing reads of a command and of a pool."""

from __future__ import annotations

from sessions.model import commands as cm
from sessions.model.types import CommandId, InputImage, InputText, Sampling, SessionId, TextOptions, Tool
from sessions.routing.models_file import PoolModel, read_models
from sessions.routing.turn_facts import PoolState, TurnFacts, candidate_of, facts_of, window_of

ID, SESSION = CommandId("c"), SessionId("s")
TOOLS = (Tool(name="look", parameters={}),)
STATE = PoolState(2, 0.5, 4_096, tools=False, sampling=frozenset({"text"}))


def test_a_message_is_its_text_and_the_sessions_tools() -> None:
    facts = facts_of(cm.MessageCreate(id=ID, session=SESSION, content="x" * 400), TOOLS)
    assert facts is not None and (facts.text, facts.tools, facts.sampling) == ("x" * 400, 1, Sampling())
    assert 100 <= facts.tokens <= 150
    assert facts_of(cm.MessageCreate(id=ID, session=SESSION, content="x", tool_choice="none"), TOOLS).tools == 0  # type: ignore[union-attr]


def test_a_turn_is_its_last_question_and_all_its_items_long() -> None:
    items = (
        cm.NewMessage(content="a" * 4_000),
        cm.NewMessage(content="b", role="assistant"),
        cm.NewMessage(content="c"),
    )
    turn = cm.TurnCreate(id=ID, session=SESSION, create=cm.SessionSettings(tools=TOOLS), items=items, top_k=2)
    facts = facts_of(turn)
    assert facts is not None and (facts.text, facts.tools, facts.sampling) == ("c", 1, Sampling(top_k=2))
    assert facts.tokens > 1_000


def test_what_begins_no_turn_has_no_facts() -> None:
    assert facts_of(cm.MessageCreate(id=ID, session=SESSION, content="x", respond=False)) is None
    assert facts_of(cm.SessionWarm(id=ID, session=SESSION)) is None
    assert facts_of(cm.ResponseCreate(id=ID, session=SESSION)) is None


def test_a_candidate_is_what_the_file_and_the_replicas_say() -> None:
    pools = read_models("[models.a]\nquality = 1\nwindow = 2048\n[models.b]\nquality = 2\ntools = true")
    plain, calling = TurnFacts("", 0, Sampling(), 9), TurnFacts("", 1, Sampling(), 9)
    made = candidate_of("a", pools, {"a": STATE}, plain, kept=7, here=True)
    assert (made.live, made.load, made.window, made.able, made.kept) == (True, 0.5, 2_048, True, 7)
    assert not candidate_of("a", pools, {"a": STATE}, calling).able
    assert not candidate_of("b", pools, {"b": STATE}, calling).able, "the file promises nothing that is not there"
    assert not candidate_of("b", pools, {}, plain).live
    assert window_of(PoolModel(quality=1), STATE) == 4_096


def test_a_turn_with_an_image_is_for_models_that_see() -> None:
    pools = read_models("[models.a]\nquality = 1")
    content = (InputText(text="x"), InputImage(image_url="data:image/png;base64,AAAA"))
    earlier = (cm.NewMessage(content=content), cm.NewMessage(content="b", role="assistant"), cm.NewMessage(content="c"))
    shown: list[cm.ActorCommand] = [
        cm.MessageCreate(id=ID, session=SESSION, content=content),
        cm.TurnCreate(id=ID, session=SESSION, items=earlier),
    ]
    for command in (*shown, cm.MessageCreate(id=ID, session=SESSION, content="x")):
        facts = facts_of(command)
        assert facts is not None
        assert candidate_of("a", pools, {"a": STATE}, facts).able == (command not in shown)
        assert candidate_of("a", pools, {"a": STATE._replace(images=True)}, facts).able


def test_a_model_is_able_to_take_a_turn_whose_fields_all_its_replicas_honour() -> None:
    pools = read_models("[models.a]\nquality = 1\n[models.b]\nquality = 2\njson = false")
    formatted, cut = Sampling(text=TextOptions({"type": "json_object"})), Sampling(top_k=2)
    able = {
        (name, field): candidate_of(name, pools, {name: STATE}, TurnFacts("", 0, sampling, 9)).able
        for name in ("a", "b")
        for field, sampling in (("text", formatted), ("top_k", cut), ("neither", Sampling(top_p=1.0)))
    }
    assert able == {
        ("a", "text"): True,
        ("a", "top_k"): False,
        ("a", "neither"): True,
        ("b", "text"): False,
        ("b", "top_k"): False,
        ("b", "neither"): True,
    }
    unknown = STATE._replace(sampling=None)
    assert candidate_of("a", pools, {"a": unknown}, TurnFacts("", 0, cut, 9)).able
