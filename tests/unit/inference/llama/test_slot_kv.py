"""A slot's KV goes into host memory and comes back, unless its file holds anything but the slot's own tokens."""

from __future__ import annotations

import array
import struct
from pathlib import Path
from typing import cast

import msgspec
import pytest

from inference.http_client import HttpClient
from inference.llama.slot_kv import SlotKv, read_tokens
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import Slot, SlotTable
from inference.tokens import as_tokens
from sessions.turn.images import image_ids
from tests.support.engines.engines import AlwaysRestores
from tests.support.engines.kv import key, make_tiers

MAGIC = 0x67677371
PROMPT = as_tokens(range(100))


def slot_file(tokens: array.array[int], *, wrapped: bool = False) -> bytes:
    words = array.array("I", [0xFFFFFFFF, 1, len(tokens)]) + tokens if wrapped else tokens
    return struct.pack("<III", MAGIC, 2, len(words)) + words.tobytes() + bytes(40)


class SlotServer:
    """What llama-server does with a slot: writes and reads its file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holds = PROMPT
        self.fails = False
        self.restored: list[str] = []

    async def call(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self.fails:
            return 500, b"broken"
        file = self.folder / msgspec.json.decode(body)["filename"]
        if path.endswith("save"):
            data = slot_file(self.holds)
            file.write_bytes(data)
            return 200, msgspec.json.encode({"n_saved": len(self.holds), "n_written": len(data)})
        self.restored.append(path)
        return 200, msgspec.json.encode({"n_restored": len(read_tokens(file, len(PROMPT)) or ())})


@pytest.fixture
def server(tmp_path: Path) -> SlotServer:
    return SlotServer(tmp_path)


@pytest.fixture
def slot_kv(server: SlotServer, tmp_path: Path) -> SlotKv:
    tiers = make_tiers(tmp_path, 1 << 20, cost=AlwaysRestores())
    usage = SlotUsage(SlotTable(1), tiers.catalog, 8)
    return SlotKv(cast(HttpClient, server), tiers, usage, worth_tokens=16)


def slot_of(name: str, tokens: array.array[int]) -> Slot:
    slot = Slot(0)
    slot.key, slot.tokens, slot.busy = key(name), tokens, True
    return slot


async def test_a_slot_that_went_on_with_something_else_is_not_kept(slot_kv: SlotKv, server: SlotServer) -> None:
    server.holds = as_tokens([*range(50), 1, 2, 3])
    await slot_kv.save(slot_of("a", PROMPT))
    assert slot_kv.counters["saves_of_others"] == 1 and slot_kv.tiers.host.bytes == 0
    assert slot_kv.tiers.catalog.place(key("a")).tier == "none" and list(server.folder.iterdir()) == []


async def test_trouble_with_the_server_leaves_no_room_taken_and_a_slot_as_unknown(
    slot_kv: SlotKv, server: SlotServer
) -> None:
    slot = slot_of("a", PROMPT)
    server.fails = True
    await slot_kv.save(slot)
    assert slot_kv.counters["saves_failed"] == 1 and slot_kv.tiers.host.bytes == 0 and slot.saved_tokens == 0
    server.fails = False
    await slot_kv.save(slot)
    server.fails = True
    empty = slot_of("a", array.array("I"))
    assert await slot_kv.bring_up(empty, key("a"), PROMPT + as_tokens([7]), 0) == 0
    assert slot_kv.counters["restores_failed"] == 1 and not empty.tokens


def test_a_slots_file_begins_with_its_tokens_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.slot"
    for wrapped in (False, True):
        path.write_bytes(slot_file(PROMPT, wrapped=wrapped))
        assert read_tokens(path, 100) == PROMPT
        assert read_tokens(path, 99) is None
    for damaged in (b"", b"short", struct.pack("<III", 1, 2, 3) + bytes(100), slot_file(PROMPT)[:30]):
        path.write_bytes(damaged)
        assert read_tokens(path, 100) is None
    assert read_tokens(tmp_path / "missing", 100) is None


async def test_what_another_session_of_the_scope_holds_is_brought_up_as_far_as_it_is_the_same(
    slot_kv: SlotKv, server: SlotServer
) -> None:
    holder = slot_of("a", PROMPT)
    holder.scope = b"mine"
    await slot_kv.save(holder)
    prompt = PROMPT[:80] + as_tokens([7, 7, 7])
    for name, scope, restored in (("b", b"", 0), ("c", b"another's", 0), ("d", b"mine", 80)):
        slot = slot_of(name, array.array("I"))
        slot.scope = scope
        assert await slot_kv.bring_up(slot, key(name), prompt, 0) == restored
        assert slot.tokens == PROMPT[:restored], "the rest of what the other session holds is not this one's"
        assert not slot_kv.is_worth_saving(slot)
    assert slot_kv.counters["restores_of_other_sessions"] == len(server.restored) == 1


async def test_the_slot_at_rest_of_another_session_of_the_scope_is_saved_for_a_run_that_begins_like_it(
    slot_kv: SlotKv,
) -> None:
    table = SlotTable(3)
    one, other = (table.acquire(key(name), PROMPT) for name in ("a", "x"))
    assert one is not None and other is not None
    for slot, scope in ((one, b"mine"), (other, b"another's")):
        table.assign(slot, key(f"of {scope!r}"), scope)
        slot.tokens = PROMPT
        table.release(slot)
    new = table.acquire(key("b"), PROMPT)
    assert new is not None
    for scope, length, spills in ((b"", 100, 0), (b"mine", 10, 0), (b"mine", 100, 1), (b"mine", 100, 1)):
        table.assign(new, key("b"), scope)
        await slot_kv.save_near(table, new, PROMPT[:length], 0)
        assert slot_kv.counters["spills"] == spills
    assert other.saved_tokens == 0 and one.saved_tokens == len(PROMPT)


def test_a_slots_file_with_images_has_their_names_where_they_are_expected(tmp_path: Path) -> None:
    path = tmp_path / "x.slot"
    image = image_ids("ab" * 32, 12)
    ours, begin = [*range(5), *image, 7, 8], 5
    held = [*range(5), 99, *[0xFFFF_FFFF] * 11, 7, 8]  # with a token before the image that is llama-server's own
    notes = [1, begin, *range(40)]
    words = [0xFFFF_FFFF, 1, len(held), *held, *notes]
    path.write_bytes(struct.pack(f"<III{len(words)}I", MAGIC, 4, len(words), *words))
    assert read_tokens(path, len(held), as_tokens(ours)) == as_tokens(ours)
    assert read_tokens(path, len(held)) == as_tokens(held)
    other = [*range(5), 99, *[0xFFFF_FFFF] * 11, 7, 9]
    assert read_tokens(path, len(held), as_tokens(other)) != as_tokens(other)
    text = as_tokens([*range(5), 99, *range(13)])
    assert read_tokens(path, len(held), text) != text, "an image is no text"


@pytest.mark.parametrize("image", [0, 1])
def test_a_slots_file_with_text_in_an_images_place_has_no_image(tmp_path: Path, image: int) -> None:
    path = tmp_path / "x.slot"
    ours = [*range(5), *image_ids("ab" * 32, 12), *image_ids("cd" * 32, 14), 7]
    images = [[0xFFFF_FFFF] * 12, [0xFFFF_FFFF] * 14]
    for replaced in (False, True):
        held = [*range(5), *images[0], *images[1], 7]
        words = [0xFFFF_FFFF, 1, len(held), *held]
        path.write_bytes(struct.pack(f"<III{len(words)}I", MAGIC, 4, len(words), *words))
        assert (read_tokens(path, len(held), as_tokens(ours)) == as_tokens(ours)) != replaced
        images[image] = [9] * len(images[image])
