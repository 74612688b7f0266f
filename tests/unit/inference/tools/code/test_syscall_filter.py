"""The filter of system calls, run as the kernel runs it."""

from __future__ import annotations

import struct

import pytest

from inference.tools.code.syscall_filter import CLONE, NUMBERS, filter_program

ALLOW, KILL, REFUSE, ABSENT = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def verdict(program: bytes, number: int, *, audit: int, first: int = 0) -> int:
    """What a filter says of a call."""
    data = {0: number, 4: audit, 16: first}
    rules = list(struct.iter_unpack("=HBBI", program))
    at = held = 0
    while True:
        code, yes, no, value = rules[at]
        at += 1
        match code:
            case 0x20:
                held = data[value]
            case 0x15:
                at += yes if held == value else no
            case 0x35:
                at += yes if held >= value else no
            case 0x45:
                at += yes if held & value else no
            case 0x06:
                return int(value)


@pytest.mark.parametrize("machine", list(NUMBERS))
def test_what_is_refused_with_and_without_a_network(machine: str) -> None:
    audit, never, offline = NUMBERS[machine]
    for network in (False, True):
        program = filter_program(machine, network=network)
        for name, number in never.items():
            assert verdict(program, number, audit=audit) == (ABSENT if name == "clone3" else REFUSE), name
        for name, number in offline.items():
            assert verdict(program, number, audit=audit) == (ALLOW if network else REFUSE), name
        assert verdict(program, 3, audit=audit) in (ALLOW, REFUSE)
        assert verdict(program, 3, audit=audit ^ 1) == KILL, "another kind of machine"
        assert verdict(program, 0x40000000 + 41, audit=audit) == KILL, "x32"
        assert verdict(program, CLONE[machine], audit=audit, first=0x11) == ALLOW
        assert verdict(program, CLONE[machine], audit=audit, first=0x10000011) == REFUSE, "a namespace"


def test_a_machine_that_is_not_known_has_none() -> None:
    with pytest.raises(KeyError):
        filter_program("m68k", network=False)
