"""Whose memories a principal's are, and how a model is shown them."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from sessions.model.memories import HEADING, owner_of, with_memories
from sessions.model.types import Principal, TenantId


@pytest.mark.parametrize(
    ("instructions", "memories", "shown"),
    [
        (None, (), None),
        ("Be brief.", (), "Be brief."),
        (None, ("a", "b"), f"{HEADING}\n- a\n- b"),
        ("Be brief.", ("a",), f"Be brief.\n\n{HEADING}\n- a"),
        (None, ("a\n\n- not another one\tb",), f"{HEADING}\n- a - not another one b"),
    ],
)
def test_they_stand_behind_the_instructions_a_line_each(
    instructions: str | None, memories: tuple[str, ...], shown: str | None
) -> None:
    assert with_memories(instructions, memories) == shown


def test_they_are_an_end_users() -> None:
    assert owner_of(Principal(tenant=TenantId("t"), key_id="k", user="ana")) == "ana"
    with pytest.raises(BadInput, match="X-Sessile-User"):
        owner_of(Principal(tenant=TenantId("t"), key_id="k"))
