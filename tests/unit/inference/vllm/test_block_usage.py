"""What the front knows of vLLM's device: counted per tenant, shed from rest, and remembered for so many sessions."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from inference.vllm import block_usage
from inference.vllm.block_usage import BlockUsage
from sessions.model.types import SessionKey, TenantId
from tests.support.engines.kv import key, make_tiers

SMALL, LARGE = TenantId("small"), TenantId("large")


async def test_what_vllm_has_on_the_device_counts_where_no_snapshot_covers_it(tmp_path: Path) -> None:
    busy: set[SessionKey] = set()
    covered: dict[SessionKey, int] = {}
    device = BlockUsage(
        16, busy.__contains__, device_tokens=1_000, token_bytes=1_000.0, covered=lambda of: covered.get(of, 0)
    )
    ceilings = dict[TenantId, int]()
    quota = make_tiers(tmp_path, 1 << 20, device=device, ceiling=ceilings.get).quota
    names = [key(name, tenant) for name, tenant in (("s0", SMALL), ("s1", SMALL), ("l0", LARGE), ("busy", SMALL))]
    tags = {name: device.tag(name) for name in names}
    for name in names:
        device.note(name, 50)  # three whole blocks
    busy.add(names[3])
    covered[names[1]] = 32
    assert quota.bytes_of(SMALL) == 48_000 + 16_000
    ceilings[SMALL] = 20_000
    assert await quota.make_room(SMALL, 0)
    assert [device.tokens(name) for name in names] == [0, 48, 48, 48], "the one used longest ago"
    assert device.take_notices(tags[names[1]]) == ([tags[names[0]]], [])
    assert not device.stays(names[0], tags[names[0]]) and device.tag(names[0]) != tags[names[0]]
    ceilings[SMALL] = 10_000
    assert await quota.make_room(SMALL, 0)
    assert [device.tokens(name) for name in names] == [0, 0, 48, 48], "what runs stays, and another tenant's"
    device.note(names[0], 960)
    assert [device.tokens(name) for name in names] == [960, 0, 0, 0], "no more than the device has room for"


def test_stays_are_remembered_of_so_many_sessions_and_of_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_usage, "TAGS_MAX", 3)
    busy = {key("runs")}
    device = BlockUsage(16, busy.__contains__, device_tokens=1_000)
    tags = {name: device.tag(key(name)) for name in ("runs", "a", "b", "c", "d")}
    for name in ("a", "b"):
        assert not device.stays(key(name), tags[name])
    for name in ("runs", "c", "d"):
        assert device.stays(key(name), tags[name])
    assert device.tag(key("c")) == tags["c"]
    busy.clear()
    device.tag(key("a"))
    assert device.stays(key("c"), tags["c"]) and not device.stays(key("runs"), tags["runs"])


def test_on_another_device_every_stay_begins_again_and_nobody_is_notified() -> None:
    device = BlockUsage(16, lambda of: False, device_tokens=1_000)
    tag = device.tag(key("a"))
    opening, _ = device.share(key("a"), OPENING, 32)
    device.note(key("a"), 50)
    device.tag(key("b"))
    device.park(key("a"))
    device.forget(key("b"))
    device.clear(64)
    assert (device.tokens(key("a")), device.total_tokens, device.device_tokens) == (0, 0, 64)
    assert not device.stays(key("a"), tag) and device.tag(key("a")) != tag
    assert device.resident(key("a")) == 0 and device.share(key("a"), OPENING, 32)[0] not in ("", opening)
    assert device.take_notices("") == ([], [])


OPENING = array("I", range(40))  # two whole blocks of 16, and a part of one
LATER = array("I", range(100, 130))


def device(tokens: int = 0) -> BlockUsage:
    return BlockUsage(16, lambda _: False, device_tokens=tokens)


def test_an_opening_is_forgotten_with_the_last_stay_that_began_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = device()
    tags = {name: usage.tag(key(name)) for name in "ab"}
    opening, _ = usage.share(key("a"), OPENING + LATER, len(OPENING))
    usage.share(key("b"), OPENING + LATER, len(OPENING))
    usage.forget(key("a"))
    assert usage.take_notices("") == ([tags["a"]], [])
    usage.forget(key("b"))
    assert usage.take_notices("") == ([tags["b"], opening], [])
    again, _ = usage.share(key("a"), OPENING + LATER, len(OPENING))
    assert again and again != opening
    monkeypatch.setattr(block_usage, "TAGS_MAX", 1)
    usage.tag(key("a"))
    usage.tag(key("z"))
    assert usage.take_notices("") == ([again], []), "its stay is no longer known"


def test_of_several_openings_the_longest_that_fits_is_taken() -> None:
    usage = device()
    longer = OPENING[:32] + LATER
    for number, (opening, shared) in enumerate(((OPENING, 16), (OPENING, 40), (longer, 62), (LATER + OPENING, 64))):
        usage.share(key(f"s{number}"), opening + LATER, shared)
    assert usage.share(key("a"), longer + OPENING, 0)[1] == 3
    assert usage.share(key("b"), OPENING + OPENING, 0)[1] == 2
    assert usage.share(key("c"), OPENING[:16] + LATER, 0)[1] == 1
    assert usage.share(key("d"), OPENING[:16], 0) == ("", 0), "no token would be left to compute"


def test_a_stay_keeps_its_opening_when_instructions_change() -> None:
    usage = device()
    opening, _ = usage.share(key("a"), OPENING + LATER, len(OPENING))
    longer = OPENING + array("I", range(200, 230))
    assert usage.share(key("a"), longer + LATER, len(longer)) == (opening, 4)
    assert usage.share(key("a"), longer + LATER, 0) == (opening, 4)
    assert usage.share(key("b"), longer + LATER, len(longer))[0] != opening


def test_whose_blocks_go_first_and_how_a_session_that_waits_makes_room() -> None:
    device = BlockUsage(16, lambda of: False, device_tokens=1_000)
    tags = {name: device.tag(key(name)) for name in ("a", "b", "c")}
    device.note(key("a"), 320)
    device.note(key("b"), 320)
    assert device.first_to_go(key("b")) is None, "there is room for another"
    device.note(key("c"), 320)
    assert device.first_to_go(key("c")) == key("a") and device.first_to_go(key("a")) == key("b")
    device.demote(key("c"))
    assert device.first_to_go(key("a")) == key("c")
    assert device.take_notices(tags["a"]) == ([], [tags["c"]])
    device.note(key("c"), 320)
    assert device.first_to_go(key("c")) == key("a"), "it has run again"


@pytest.mark.parametrize("seed", range(8))
def test_what_the_device_holds_adds_up_whatever_comes_and_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(block_usage, "TAGS_MAX", 9)
    usage = device(1_000)
    names = [key(f"s{number}", tenant) for number in range(6) for tenant in ("a", "b")]
    openings = {name: rng.choice((0, 16, 32)) for name in names}  # tokens
    for _ in range(400):
        name = rng.choice(names)
        match rng.randrange(8):
            case 0:
                usage.forget(name)
            case 1:
                usage.forget_openings(name.tenant)
            case _:
                usage.tag(name)
                openings[name] = 16 * usage.share(name, OPENING + LATER, openings[name])[1]
                usage.note(name, rng.randrange(40, 300))
        own = sum(usage.tokens(each) - openings[each] for each in usage.sessions)
        shared = sum({(each.tenant, openings[each]): openings[each] for each in usage.sessions}.values())
        assert usage.total_tokens == own + shared <= 1_000
