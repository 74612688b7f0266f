"""Which model takes a turn: what a file says, what a turn is, its score, and the decision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import commands as cm
from sessions.model.errors import Forbidden
from sessions.model.types import CommandId, InputImage, InputText, Sampling, SessionId, TenantId, TextOptions, Tool
from sessions.routing.decision import (
    CandidateModel,
    RoutingDecision,
    TurnSituation,
    decide,
    extra_tokens,
    prefill_s,
    proposed_index,
)
from sessions.routing.models_file import NO_POOLS, ModelChoice, PoolModel, RoutingRules, read_models
from sessions.routing.scorer import LOOKED_AT, score_turn
from sessions.routing.turn_facts import PoolState, TurnFacts, candidate_of, facts_of, window_of

RULES = RoutingRules(worth_tokens=4_000)
SMALL, LARGE = CandidateModel("small", 1), CandidateModel("large", 2, prefill_per_s=500.0)


def decided(
    current: str,
    score: float,
    prompt: int = 100,
    small: CandidateModel = SMALL,
    large: CandidateModel = LARGE,
    **more: Any,
) -> RoutingDecision:
    made = decide(TurnSituation(current, score, prompt, **more), [small, large], RULES)
    assert made is not None
    return made


def test_the_first_turn_goes_where_its_score_says_and_leans_up() -> None:
    assert decided("", 0.2).model == "small"
    assert decided("", 0.45).model == "large", "within the margin: to go up later costs the conversation"
    assert decided("", 0.9)[:2] == ("large", "first_turn") and decided("", 0.9).tokens == 0


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 9), st.sampled_from(["small", "large"]))
def test_nothing_is_switched_in_a_turn(score: float, level: float, calm: int, current: str) -> None:
    made = decided(current, score, in_turn=True, level=level, calm=calm)
    assert made[:2] == (current, "in_turn") and (made.level, made.calm) == (level, calm)


def test_a_hard_turn_goes_up_while_that_costs_little() -> None:
    held = SMALL._replace(kept=900)
    made = decided("small", 0.9, 1_000, small=held, level=0.6)
    assert made[:2] == ("large", "hard") and made.tokens == 900
    assert made.seconds == pytest.approx(1_000 / 500 - 100 / 1_000)
    dear = decided("small", 0.9, 100_000, small=SMALL._replace(kept=99_000), level=0.6)
    assert dear[:2] == ("small", "not_worth_it") and dear.tokens == 0


def test_one_hard_turn_of_an_easy_session_is_worth_less_than_one_of_many() -> None:
    held = SMALL._replace(kept=1_500)
    assert decided("small", 0.9, 1_600, small=held, level=0.1).why == "not_worth_it"
    assert decided("small", 0.9, 1_600, small=held, level=0.8).model == "large"


def test_what_is_lost_anyway_costs_nothing() -> None:
    made = decided("small", 0.9, 50_000, level=0.1)
    assert made[:2] == ("large", "free") and made.tokens == 0, "neither has KV of it"
    kept = decided("small", 0.9, 1_000, small=SMALL._replace(kept=900), large=LARGE._replace(kept=950), level=0.1)
    assert kept[:2] == ("large", "free"), "the model that it left has kept more"


def test_down_only_after_calm_turns_and_back_by_the_same_way() -> None:
    held, level, calm, models = LARGE._replace(kept=300), 0.7, 0, []
    for _ in range(12):
        made = decided("large", 0.1, 320, large=held, level=level, calm=calm)
        level, calm = made.level, made.calm
        models.append(made.model)
        if made.model == "small":
            break
    assert made.why == "calm" and models.index("small") >= RULES.calm_turns - 1


def test_scores_near_the_bound_switch_nothing() -> None:
    held = SMALL._replace(kept=90)
    assert decided("small", RULES.hard + 0.9 * RULES.margin, small=held, level=0.5)[:2] == ("small", "steady")
    held = LARGE._replace(kept=90)
    assert decided("large", RULES.hard - 0.9 * RULES.margin, large=held, level=0.5, calm=9)[:2] == ("large", "steady")


def test_a_lost_pool_is_left_and_come_back_to() -> None:
    made = decided("large", 0.9, large=LARGE._replace(live=False), level=0.9)
    assert made[:2] == ("small", "pool_lost") and made.tokens == 100
    back = decided("small", 0.2, small=SMALL._replace(kept=90), level=0.8, displaced=True)
    assert back.model == "large", "its level says so, though this turn is easy"


def test_a_full_pool_is_left_and_not_gone_to() -> None:
    full = LARGE._replace(load=RULES.full, kept=90)
    assert decided("large", 0.9, large=full, level=0.9)[:2] == ("small", "brownout")
    held = SMALL._replace(kept=90)
    assert decided("small", 0.9, small=held, large=full, level=0.9)[:2] == ("small", "full")
    assert decided("", 0.9, large=full).model == "small"
    both = decided("large", 0.9, small=SMALL._replace(load=9.0), large=full, level=0.9)
    assert both.model == "large", "nowhere is room"


def test_a_model_that_cannot_do_it_is_left() -> None:
    assert decided("small", 0.1, small=SMALL._replace(able=False), level=0.1)[:2] == ("large", "unfit")
    assert decided("small", 0.1, 5_000, small=SMALL._replace(window=4_096), level=0.1).why == "unfit"
    assert decide(TurnSituation("small", 0.1, 100), [SMALL._replace(live=False)], RULES) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(10, 900)), min_size=2, max_size=40))
def test_a_session_never_pays_more_for_a_switch_than_it_is_worth(turns: list[tuple[float, int]]) -> None:
    current, level, calm, prompt, kept = "", None, 0, 0, {"small": 0, "large": 0}
    for score, added in turns:
        prompt += added
        held = [SMALL._replace(kept=kept["small"]), LARGE._replace(kept=kept["large"])]
        made = decide(TurnSituation(current, score, prompt, level=level, calm=calm), held, RULES)
        assert made is not None and made.tokens <= RULES.worth_tokens
        assert 0 <= made.level <= 1
        current, level, calm = made.model, made.level, made.calm
        kept[current] = prompt


FILE = """
default = "auto"
[models.large]
quality = 2
[models.small]
quality = 1
[aliases]
auto = ["large", "small"]
best = "large"
[tenants.thrifty]
allow = ["small"]
[tenants.pinned]
pin = "large"
wish = 0.2
[tenants.by_alias]
allow = ["auto"]
"""
ANYBODY, THRIFTY = TenantId("anybody"), TenantId("thrifty")


def test_an_alias_means_its_models_the_worse_first() -> None:
    pools = read_models(FILE)
    assert pools.choice(ANYBODY, "auto") == pools.choice(ANYBODY, None) == ModelChoice("auto", ("small", "large"))
    assert pools.choice(ANYBODY, "best") == ModelChoice("best", ("large",))
    assert pools.choice(ANYBODY, "small") == ModelChoice("", ("small",))
    assert pools.choice(ANYBODY, "unlisted") is None, "served perhaps, and nothing is known of it here"


def test_without_a_file_nothing_is_decided() -> None:
    assert NO_POOLS.choice(ANYBODY, "auto") is None and NO_POOLS.visible(ANYBODY, "auto")


def test_an_allow_list_narrows_aliases_and_refuses_the_rest_in_a_sentence() -> None:
    pools = read_models(FILE)
    assert pools.choice(THRIFTY, "auto") == ModelChoice("auto", ("small",))
    for name in ("large", "best", "unlisted"):
        with pytest.raises(Forbidden, match=f"You may not use the model '{name}'. Those that you may: small.") as info:
            pools.choice(THRIFTY, name)
        assert info.value.code == "model_not_allowed" and not pools.visible(THRIFTY, name)
    assert pools.choice(TenantId("by_alias"), "auto") == ModelChoice("auto", ("small", "large"))


def test_a_pin_is_what_aliases_of_several_mean() -> None:
    pools = read_models(FILE)
    pinned = TenantId("pinned")
    assert pools.choice(pinned, "auto") == ModelChoice("auto", ("large",))
    assert (pools.wish(pinned), pools.wish(ANYBODY)) == (0.2, 0.0)


def test_a_version_is_of_what_a_file_says_and_not_of_how() -> None:
    again = read_models("# the same\n" + FILE)
    assert again.version == read_models(FILE).version != read_models(FILE.replace("0.2", "0.3")).version


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[aliases]\nauto = ["small"]', r"there is no \[models.small\]"),
        ("[models.a]\nquality = 1\n[models.b]\nquality = 1\n[aliases]\nauto = ['a', 'b']", "a quality of its own"),
        ("[models.a]\nquality = 1\n[aliases]\na = 'a'", "there is a model of this name"),
        ("default = 'x'", "there is no model or alias 'x'"),
        ("[models.a]\nquality = 1\n[tenants.t]\nallow = ['a']", "needs a `default`"),
        ("default = 'a'\n[models.a]\nquality = 1\n[tenants.t]\nallow = ['b']", "there is no model or alias 'b'"),
        ("[tenants.t]\npin = 'b'", r"there is no \[models.b\]"),
        ("[models.'a=b']\nquality = 1", "matching regex"),
        ("[models.a]\nquality = 1\nsize = 2", "unknown field"),
        ("[routing]\nhard = 2", "<= 1"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=why):
        read_models(text)


HARD = "Refactor this and explain why it is safe:\n```python\ndef take(queue):\n    return queue.pop()\n```"


def test_a_hard_turn_scores_above_an_easy_one() -> None:
    easy, hard = score_turn("Thanks! And what should I cook tonight?"), score_turn(HARD)
    assert easy.value < 0.3 and easy.why == ()
    assert hard.value > 0.6 and {"code", "reasoning"} <= set(hard.why)


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("x" * 500, "length"),
        ("Traceback (most recent call last):", "code"),
        ("Prove it.", "reasoning"),
        ("Как это работает? Расскажи подробнее", "language"),
    ],
)
def test_each_feature_counts_and_is_named(text: str, feature: str) -> None:
    score = score_turn(text)
    assert feature in score.why and score.value > score_turn("Hello").value


def test_tools_and_the_tenants_wish_count() -> None:
    plain = score_turn("Hello").value
    assert score_turn("Hello", tools=2).value > plain
    assert score_turn("Hello", wish=0.5).value == pytest.approx(plain + 0.5)
    assert score_turn("Hello", wish=-1.0).value == 0.0


def test_only_the_ends_of_a_long_text_are_read() -> None:
    filler = "y" * LOOKED_AT
    assert "code" not in score_turn(f"{filler}\n```\n{filler}").why
    assert "code" in score_turn(f"{filler}{filler}\n```\n").why


@given(st.text(max_size=2_000), st.integers(0, 128), st.floats(-1, 1))
def test_a_score_is_between_0_and_1(text: str, tools: int, wish: float) -> None:
    assert 0 <= score_turn(text, tools=tools, wish=wish).value <= 1


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


def test_three_models_share_the_scores() -> None:
    assert [proposed_index(value, 3, 0.5) for value in (0.0, 0.5, 0.74, 0.75, 1.0)] == [0, 1, 1, 2, 2]
    assert proposed_index(1.0, 1, 0.5) == 0


def test_costs_count_what_comes_back_from_memory_by_its_time() -> None:
    situation = TurnSituation("small", 0.5, 1_000)
    away = LARGE._replace(kept=500, on_device=False, restore_per_s=1_000.0)
    assert extra_tokens(situation, SMALL._replace(kept=900), away) == 400
    assert prefill_s(situation, away) == pytest.approx(500 / 500 + 500 / 1_000)
