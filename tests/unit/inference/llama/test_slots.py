"""Slots and the queue before them: never two sessions in one slot, never a slot leaked, nobody overtaken."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.llama.slots import Slot, SlotTable
from inference.tokens import as_tokens, common_prefix
from tests.support.engines.kv import key

NAMES = st.sampled_from(["a", "b", "c", "d"])
TOKENS = st.lists(st.integers(0, 2), max_size=6)


class SlotMachine(RuleBasedStateMachine):
    """Sessions come and go over three slots, as the engine drives the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(3)
        self.held: dict[int, tuple[Slot, str]] = {}  # what we were given and have not given back

    @rule(name=NAMES, prompt=TOKENS)
    def acquire(self, name: str, prompt: list[int]) -> None:
        idle = [slot for slot in self.table if not slot.busy]
        own = [slot for slot in idle if slot.key == key(name)]
        empty = [slot for slot in idle if slot.key is None]
        slot = self.table.acquire(key(name), as_tokens(prompt))
        if slot is None:
            assert not idle
            return
        assert slot in idle and slot.number not in self.held
        if own:
            most = max(common_prefix(other.tokens, as_tokens(prompt)) for other in own)
            assert slot in own and common_prefix(slot.tokens, as_tokens(prompt)) == most
        elif empty:
            assert slot in empty
        else:
            assert slot.key is not None
            ranks = [(not other.parked, other.used) for other in idle]
            assert (not slot.parked, slot.used) == min(ranks)
        self.table.assign(slot, key(name))
        assert slot.key == key(name)
        self.held[slot.number] = (slot, name)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=TOKENS)
    def release(self, data: st.DataObject, tokens: list[int]) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        slot, _ = self.held.pop(number)
        if slot.key is not None:
            slot.tokens = as_tokens(tokens)
        self.table.release(slot)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        for slot in self.table.of(key(name)):
            self.table.forget(slot)
        assert self.table.of(key(name)) == []

    @rule(name=NAMES)
    def park(self, name: str) -> None:
        for slot in self.table.of(key(name)):
            slot.parked = True

    @invariant()
    def books_agree(self) -> None:
        self.table.check_integrity()
        assert {slot.number for slot in self.table if slot.busy} == set(self.held)
        assert self.table.num_busy == len(self.held)
        for slot, name in self.held.values():
            assert slot.key in (key(name), None)
        for slot in self.table:
            if not slot.busy and slot.key is None:
                assert not slot.tokens and not slot.saved_tokens


TestSlots = SlotMachine.TestCase


def test_beside_what_a_session_goes_on_from_a_branch_that_it_has_left_is_overwritten() -> None:
    table = SlotTable(2)
    left, live = (table.acquire(key("a"), as_tokens([])) for _ in range(2))
    assert left is not None and live is not None
    for slot, tokens in ((left, [0, 1, 2, 3, 4, 5]), (live, [0, 1, 2, 6, 7, 8, 9])):
        table.assign(slot, key("a"))
        slot.tokens = as_tokens(tokens)
        table.release(slot)
    head = as_tokens([0, 77, 78])
    assert table.acquire(key("a"), head, beside=True) is left
    table.release(left)
    assert table.acquire(key("a"), head) is left, "it was used last now"
