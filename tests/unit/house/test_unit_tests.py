"""tests/unit mirrors the tree: a module of logic has a unit test of its name."""

from __future__ import annotations

from tests.support.house import LOGIC_MIN, Module, everything, without_unit_test


def test_every_module_of_logic_has_a_unit_test_of_its_name() -> None:
    rule = "modules of logic without a unit test"
    assert everything()[rule] == []


def test_a_module_of_logic_without_its_test_is_seen() -> None:
    def logic(number: int) -> str:
        return "def f(x):\n" + "    if x:\n        pass\n" * number

    there = ["tests/unit/sessions/actor/test_mailbox.py", "tests/unit/sessions/actor/test_actor_stops.py"]
    tree = [
        Module("sessions/actor/mailbox.py", logic(LOGIC_MIN)),
        Module("sessions/actor/actor.py", logic(LOGIC_MIN)),
        Module("sessions/actor/table.py", "if 1:\n    pass\n" * 9 + logic(LOGIC_MIN - 1)),
        Module("transport/cli/keys.py", logic(LOGIC_MIN)),
    ]
    assert without_unit_test(tree, there) == []
    assert without_unit_test([Module("sessions/actor/box.py", logic(LOGIC_MIN))], there) == ["sessions/actor/box.py"]
    assert without_unit_test([Module("sessions/mailbox.py", logic(LOGIC_MIN))], there) == ["sessions/mailbox.py"]
    loops = (
        "async def f():\n    async for x in y:\n        while x:\n            try: pass\n            except E: pass\n"
    )
    loops += "    match x:\n        case 1: pass\n    return [x for x in y]\n"
    assert without_unit_test([Module("sessions/a.py", loops)], there) == ["sessions/a.py"]


def test_what_loads_vllm_may_be_tested_in_its_own_environment() -> None:
    source = "def f(x):\n" + "    if x:\n        pass\n" * LOGIC_MIN
    assert without_unit_test([Module("inference/vllm/engine.py", source)], ["tests/vllm/test_vllm_engine.py"]) == []
