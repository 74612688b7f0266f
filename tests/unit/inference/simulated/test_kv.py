"""The simulated device: bounded, and it never invents a prefix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.simulated.kv import DeviceMemory
from inference.tokens import as_tokens
from tests.support.engines.engines import key

operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "take", "erase", "park", "shrink"]),
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(0, 2), max_size=12),
    ),
    max_size=60,
)


@given(operations)
def test_device_memory_is_bounded_and_never_invents_a_prefix(steps: list[tuple[str, str, list[int]]]) -> None:
    memory = DeviceMemory(30)
    put: dict[str, list[list[int]]] = {}
    for what, name, values in steps:
        sequence = as_tokens(values)
        match what:
            case "put":
                memory.put(key(name), sequence)
                put.setdefault(name, []).append(values)
            case "take":
                held = memory.take(key(name), sequence)
                assert any(values[:held] == known[:held] for known in put.get(name, [])) or held == 0
            case "erase":
                memory.erase(key(name))
                put.pop(name, None)
                assert memory.longest(key(name)) is None
            case "park":
                memory.park(key(name))
            case "shrink":
                memory.shrink_to(10)
                assert memory.tokens <= 10
        assert 0 <= memory.tokens <= 30
    for name in put:
        memory.erase(key(name))
    assert memory.tokens == 0


def test_a_run_takes_what_other_sessions_of_its_scope_hold_and_leaves_it_there() -> None:
    memory = DeviceMemory(100)
    memory.put(key("a"), as_tokens([1, 2, 3]), b"mine")
    memory.put(key("b"), as_tokens([1, 2, 3, 4]), b"another's")
    memory.put(key("c"), as_tokens([1, 2, 3, 4]))
    prompt = as_tokens([1, 2, 3, 4, 5])
    for scope, held in ((b"mine", 3), (b"another's", 4), (b"", 0), (b"nobody's", 0)):
        assert memory.take(key("new"), prompt, scope) == held
    memory.erase(key("a"))
    assert memory.take(key("new"), prompt, b"mine") == 0
