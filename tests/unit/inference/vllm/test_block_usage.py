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


OPENING = array("I", range(40))  # two whole blocks of 16, and a part of one
LATER = array("I", range(100, 130))


def device(tokens: int = 0) -> BlockUsage:
    return BlockUsage(16, lambda _: False, device_tokens=tokens)


def test_sessions_of_a_tenant_that_begin_alike_share_an_opening_of_whole_blocks() -> None:
    usage = device()
    first = usage.share(key("a"), OPENING + LATER, len(OPENING))
    assert first[0] and first[1] == 2
    assert usage.share(key("b"), OPENING + OPENING, len(OPENING)) == first
    assert usage.share(key("a"), OPENING + LATER + LATER, len(OPENING)) == first
    assert usage.share(key("c"), LATER + OPENING, len(OPENING))[0] != first[0], "another opening"
    assert usage.share(key("a", "other"), OPENING + LATER, len(OPENING))[0] != first[0], "another tenant"
    assert usage.share(key("d"), OPENING + LATER, 15) == ("", 0), "no whole block"
    assert usage.share(key("d"), OPENING + LATER, len(OPENING)) == ("", 0), "what its stay began without"


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


def test_a_run_that_does_not_know_its_opening_takes_its_stays_or_one_that_is_known() -> None:
    usage = device()
    opening, blocks = usage.share(key("a"), OPENING + LATER, len(OPENING))
    assert usage.share(key("a"), OPENING + LATER, 0) == (opening, blocks)
    assert usage.share(key("a"), LATER + OPENING, 0) == ("", 0), "instructions that have changed since"
    assert usage.share(key("b"), OPENING + LATER, 0) == (opening, blocks)
    assert usage.share(key("b"), OPENING + LATER, len(OPENING)) == (opening, blocks)
    assert usage.share(key("a", "other"), OPENING + LATER, 0) == ("", 0)
    assert usage.share(key("c"), LATER + OPENING, 0) == ("", 0)


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


def test_all_openings_of_a_tenant_go_with_what_stands_behind_them() -> None:
    usage = device(1_000)
    names = [key("a"), key("b"), key("a", "other")]
    tags = [usage.tag(name) for name in names]
    openings = [usage.share(name, OPENING + LATER, len(OPENING))[0] for name in names]
    for name in names:
        usage.note(name, 64)
    usage.forget_openings(names[0].tenant)
    assert sorted(usage.take_notices("")[0]) == sorted([tags[0], tags[1], openings[0]])
    assert [usage.tokens(name) for name in names] == [0, 0, 64]
    assert usage.share(names[2], OPENING + LATER, len(OPENING))[0] == openings[2]
    assert usage.share(names[0], OPENING + LATER, len(OPENING))[0] not in ("", *openings)


def test_what_is_shared_counts_once() -> None:
    usage = device(160)
    for name in "abc":
        usage.tag(key(name))
        usage.share(key(name), OPENING + LATER, len(OPENING))
    assert usage.resident(key("b")) == 0
    for name in "abc":
        usage.note(key(name), 64)
    assert usage.total_tokens == 32 + 3 * 32 and usage.resident(key("a")) == 64
    usage.note(key("c"), 96)
    assert usage.total_tokens == 160
    usage.note(key("b"), 80)
    assert usage.tokens(key("a")) == 0 and usage.resident(key("a")) == 32, "the rest of it had to go"
    assert usage.total_tokens == 32 + 64 + 48


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
