"""What a model may read is filtered: calls, tools and schemas, and texts where they meet."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.actor.prompt_filter import Neighbours, PromptFilter
from sessions.metrics import Histogram
from sessions.model import commands as cm
from sessions.model.errors import BadInput
from sessions.model.types import LOCAL_PRINCIPAL, CallId, InputImage, InputText, Principal, TextOptions, Tool
from sessions.model.verdicts import PASS, Finding, Verdict
from sessions.turn.past_texts import NEIGHBOURS_REACH, PromptText
from tests.support.input_filter_set import InputFilterSet


class Redact(InputFilterSet):
    """Redacts "red", blocks "black"."""

    async def check(self, principal: Principal, text: str) -> Verdict:
        return self.check_seam(principal, text, len(text), 0)

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        for word in ("black", "red"):
            start, end = text.find(word), text.find(word) + len(word)
            if 0 <= start < last and end > first:
                action: Any = "block" if word == "black" else "redact"
                found = Finding(category="c", action=action, start=start, end=end)
                return Verdict(action=action, start=start, end=end, replacement="~", findings=(found,))
        return PASS


class Seeing(Redact):
    """Blocks wide images, flags high ones."""

    async def check_image(self, principal: Principal, image: InputImage) -> Verdict:
        if image.width == image.height:
            return PASS
        action: Any = "block" if image.width > image.height else "flag"
        found = Finding(category="images", action=action, start=0, end=1)
        return Verdict(action=action, message="Too wide.", findings=(found,))


@pytest.fixture
def filter() -> PromptFilter:
    return PromptFilter(LOCAL_PRINCIPAL, Redact(), 1_000, Histogram(()))


def call(arguments: str, name: str = "look") -> cm.NewCall:
    return cm.NewCall(call_id=CallId("c"), name=name, arguments=arguments)


async def refused(filtering: Any) -> str | None:
    with pytest.raises(BadInput) as caught:
        await filtering
    assert caught.value.code == "content_filter"
    return caught.value.param


async def test_arguments_are_redacted_and_names_are_refused(filter: PromptFilter) -> None:
    assert (await filter.call(call('{"a": "red"}'))).arguments == '{"a": "~"}'
    await refused(filter.call(call("{}", name="red")))
    await refused(filter.call(call('{"a": "black"}')))
    await refused(filter.output("fine", unknown="red"))


async def test_prose_of_a_tool_is_redacted_and_nothing_else(filter: PromptFilter) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"at": {"description": "a red one", "examples": ["red"]}}}
    (tool,) = await filter.tools((Tool(name="look", description="red", parameters=schema),))
    assert tool.description == "~" and tool.parameters is not None
    assert tool.parameters["properties"] == {"at": {"description": "a ~ one", "examples": ["~"]}}
    assert len(filter.findings) == 3
    schemas: list[dict[str, Any]] = [{"properties": {"red": {}}}, {"enum": ["red"]}, {"pattern": "red"}]
    for bad in schemas:
        assert await refused(filter.tools((Tool(name="look", parameters=bad),))) == "tools"
    assert await refused(filter.tools((Tool(name="red"),))) == "tools"


async def test_the_schema_of_an_answer_is_never_changed(filter: PromptFilter) -> None:
    await filter.format(None)
    await filter.format(TextOptions({"type": "json_object"}))
    assert await refused(filter.format(TextOptions({"type": "json_schema", "schema": {"const": "red"}}))) == "text"


async def test_what_lies_over_two_texts_is_taken_out_of_the_second(filter: PromptFilter) -> None:
    assert await filter.text("a re") == "a re"
    assert await filter.text("d rose") == "~ rose"
    assert [(each.start, each.end, each.text) for each in filter.findings] == [(0, 1, "d")]
    assert await filter.text("bla", by_model=True) == "bla"
    assert await filter.text("harmless") == "harmless"
    await refused(filter.text("ck", by_model=True))  # beside what the same author wrote


async def test_what_stands_before_is_read_to_a_bound() -> None:
    near = Neighbours([PromptText("x" * 2 * NEIGHBOURS_REACH, False), PromptText("", True), PromptText("y", True)])
    ends = dict.fromkeys(each.end for each in near.ends(by_model=True))
    assert {len(end) for end in ends} == {NEIGHBOURS_REACH, 1}
    assert all(end.endswith("y") for end in ends)


async def test_images_are_judged_where_they_stand_by_the_filters_that_see(filter: PromptFilter) -> None:
    square, wide, high = (InputImage(image_url="data:", width=w, height=h) for w, h in ((2, 2), (3, 2), (2, 3)))
    seeing = PromptFilter(LOCAL_PRINCIPAL, Seeing(), 1_000, Histogram(()))
    await seeing.images("no image")
    await seeing.images((square, InputText("Look:"), high))
    assert [(each.start, each.end, each.text) for each in seeing.findings] == [(6, 7, "[image]")]
    assert await refused(seeing.images((wide, high))) == "content"
    assert [each.action for each in seeing.findings] == ["flag", "block", "flag"]
    await filter.images((wide, high))  # which sees nothing
    await seeing.images((InputImage(width=3, height=2),))  # of which models read nothing
    assert filter.findings == [] and len(seeing.findings) == 3
