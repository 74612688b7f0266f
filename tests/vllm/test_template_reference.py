"""The reference that templates of families are held against is what transformers renders."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from inference.template_environment import FAILURES
from tests.support.engines.chat_templates import FAMILIES
from tests.support.engines.template_reference import DAY, SCENARIOS, SIGNATURE, as_messages, reference

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_renders_as_transformers_does(family: str) -> None:
    render, day = reference(FAMILIES[family]), datetime.fromtimestamp(DAY / 1000, UTC)
    for instructions, tools, said in SCENARIOS.values():
        messages, functions = as_messages(instructions, said), [SIGNATURE] if tools else None
        try:
            text = render(messages, functions)
        except FAILURES:
            continue
        given = {"bos_token": "<s>", "eos_token": "</s>", "strftime_now": day.strftime}
        (theirs,), _ = render_jinja_template(
            [messages], functions, chat_template=FAMILIES[family], add_generation_prompt=True, **given
        )
        assert text == theirs
