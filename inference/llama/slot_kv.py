"""Saves a slot's KV and restores a session's KV into its slot, where each is worth it.

A slot is one opaque file to llama.cpp. It is saved when another session, or another branch of its own, takes the slot
over, or already when its turn ends while all slots are taken, so that the next arrival need not wait for it. It is
restored when a snapshot saves more tokens than the slot holds already. llama.cpp does either between two steps, so a
save holds the other streams up for as long as it takes to copy the KV.

What a file holds is read from the file itself: it begins with the token ids. Only a file whose ids begin with the
slot's ledger is kept, and only one whose ids are the manifest's is restored. Files have no ids for images, but a hash
of each one's pixels, by which llama-server decides what a prompt may reuse of a restored slot.
"""

from __future__ import annotations

import array
import asyncio
import struct
import time
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import structlog

from inference.http_client import HttpClient
from inference.kv.cold_tier import ColdSnapshot
from inference.kv.cost import RestoreChoice
from inference.kv.envelope import SnapshotRefused
from inference.kv.host_tier import HostSnapshot
from inference.kv.tiers import Tiers
from inference.llama.slot_usage import SlotUsage
from inference.llama.slots import Slot, SlotTable
from inference.tokens import common_prefix, names_images
from sessions.model.errors import SessileError
from sessions.model.types import SHARED, SessionKey
from sessions.turn.images import FIRST, PATCH

log = structlog.get_logger(__name__)
T = TypeVar("T")

_HEAD: Final = struct.Struct("<III")  # magic, version, number of words that follow
_MAGIC: Final = 0x67677371  # llama.cpp's LLAMA_STATE_SEQ_MAGIC
_WRAPPED: Final = 0xFFFFFFFF  # llama-server's own list begins with -1, a version and a count
_WRAPPING: Final = 3  # words
_NULL: Final = 0xFFFFFFFF  # stands for a token of an image
_COUNTERS: Final = (
    "spills",
    "restores",
    "openings_laid",
    "restores_of_other_sessions",
    "restored_tokens",
    "saves_failed",
    "saves_of_others",
    "restores_declined",
    "restores_failed",
    "restores_refused",
)
_SLACK_BYTES: Final = 1 << 16


class _Saved(msgspec.Struct, frozen=True):
    n_saved: int
    n_written: int


class _Restored(msgspec.Struct, frozen=True):
    n_restored: int


class SlotKv:
    """Moves KV between slots and tiers. A slot that is passed to `bring_up` or `save` must be held by the caller
    (busy)."""

    def __init__(self, http: HttpClient, tiers: Tiers, usage: SlotUsage, *, worth_tokens: int) -> None:
        self.tiers = tiers
        self.counters: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))
        self._http = http
        self._worth_tokens = worth_tokens
        self._usage = usage
        self._saving: dict[Slot, asyncio.Task[None]] = {}

    async def bring_up(self, slot: Slot, key: SessionKey, prompt: array.array[int], resident: int) -> int:
        """Restores a snapshot into the slot if that is worth it. `resident`: how many leading tokens of `prompt` are in
        the slot. Returns how many are in it afterwards."""
        if len(prompt) - 1 - resident < self._worth_tokens:
            return resident
        await self.tiers.discover(key, prompt[:-1])
        snapshot, shared = self.tiers.catalog.find_near(key, prompt, slot.scope)
        useful = min(shared, len(prompt) - 1)
        if snapshot is None or useful - resident < self._worth_tokens:
            return resident
        choice = self.tiers.choose(snapshot, resident, useful)
        if not choice.tries:
            self.counters["restores_declined"] += 1
            return resident
        tokens = await self.restore(slot, snapshot, choice)
        if tokens is None:
            return resident if slot.key == key else 0
        self.counters["restores"] += len(tokens) > 0
        if slot.key != key:
            return 0  # deleted meanwhile: the run goes on, on nothing of what it was
        restored = common_prefix(tokens, prompt)
        if snapshot.key == key:
            slot.tokens = tokens
        else:  # of another session: what the two have in common is now also this one's
            slot.tokens = tokens[:restored]
            self.counters["restores_of_other_sessions"] += 1
        slot.saved_tokens = len(slot.tokens)
        self.counters["restored_tokens"] += restored
        return restored

    async def save_near(self, table: SlotTable, slot: Slot, prompt: array.array[int], resident: int) -> None:
        """Saves an idle slot of another session in the scope of `slot`, if it shares so much of the prompt that saving
        and then restoring it is faster than computing, and no snapshot covers that yet."""
        assert slot.key is not None
        near, shared = table.nearest(slot.key, slot.scope, prompt)
        useful = min(shared, len(prompt) - 1)
        if near is None or useful - resident < self._worth_tokens:
            return
        have = max(resident, self.tiers.catalog.find_near(slot.key, prompt, slot.scope)[1])
        size = len(near.tokens) * self._usage.bytes_per_token
        if useful - have >= self._worth_tokens and self.tiers.cost.is_worth_saving(
            size, have, useful, time.monotonic()
        ):
            await self.save(near)

    def is_worth_saving(self, slot: Slot) -> bool:
        return slot.key is not None and len(slot.tokens) - slot.saved_tokens >= self._worth_tokens

    def is_branch_worth_saving(self, slot: Slot, shared: int) -> bool:
        """Returns whether saving the slot's tokens behind the first `shared` ones is faster than computing them again
        later: another branch of its session is about to overwrite them, and no snapshot covers them."""
        tokens, begin = len(slot.tokens), max(shared, self._usage.covered_tokens(slot))
        if tokens - begin < self._worth_tokens:
            return False
        size = tokens * self._usage.bytes_per_token
        return self.tiers.cost.is_worth_saving(size, begin, tokens, time.monotonic())

    def has_evictable(self, resident: Set[SessionKey | None]) -> bool:
        """Returns whether host memory holds a snapshot of a session that is neither parked nor in `resident`."""
        return any(
            not snapshot.parked and snapshot.key not in resident and not snapshot.key.session.startswith(SHARED)
            for snapshot in self.tiers.host
        )

    def has_room_for_more(self) -> bool:
        """Returns whether host memory is less than half full, so that KV may be saved there before anybody needs
        that."""
        return self.tiers.host.bytes * 2 < self.tiers.host.bytes_max

    async def save(self, slot: Slot) -> None:
        """Saves the slot if that is worth it; if a save of the slot is under way, waits for it."""
        if slot in self._saving:
            await asyncio.shield(self._saving[slot])
        if self.is_worth_saving(slot):
            await asyncio.shield(self.begin_save(slot))

    def begin_save(self, slot: Slot) -> asyncio.Task[None]:
        """Starts to save a slot and returns the task. A run may use the slot meanwhile, because the server carries out
        its requests to a slot one after the other."""
        task = self._saving.get(slot)
        if task is None:
            task = self._saving[slot] = asyncio.create_task(self._save(slot))
            slot.saving = True
            task.add_done_callback(lambda _: self._saved(slot))
        return task

    async def settle(self) -> None:
        while self._saving:
            await asyncio.wait(self._saving.values())

    # -- inside --------------------------------------------------------------------------------------

    def _saved(self, slot: Slot) -> None:
        slot.saving = False
        del self._saving[slot]

    async def _save(self, slot: Slot) -> None:
        key, expected = slot.key, slot.tokens
        if key is None:
            return
        tokens = await self.store(slot, key, expected, lambda: slot.key == key, slot.scope)
        if tokens is not None:
            self.counters["spills"] += 1
            if slot.tokens is expected:
                slot.tokens = tokens
            slot.saved_tokens = common_prefix(slot.tokens, tokens)

    async def store(
        self,
        slot: Slot,
        key: SessionKey,
        expected: array.array[int],
        is_needed: Callable[[], bool],
        scope: bytes = b"",
    ) -> array.array[int] | None:
        """Saves the slot's KV as a snapshot of `key` in host memory; returns its tokens, which begin with `expected`.

        Returns None if there is no room, the slot no longer holds `expected`, or `is_needed` returns false."""
        size = len(expected) * self._usage.bytes_per_token + _SLACK_BYTES
        leaves = self._usage.unsaved_bytes(slot) if slot.key == key else 0  # it is counted once: there, and then here
        grows = max(0, size - leaves)
        if not await self.tiers.reserve(size, key.tenant, grows=grows, computed=len(expected)):
            return None
        path = self.tiers.host.new_path()
        adopted = False
        try:
            if not is_needed():
                return None
            saved = await self._command(slot, "save", path, _Saved)
            if saved is None:
                self.counters["saves_failed"] += 1
                return None
            tokens = await asyncio.to_thread(read_tokens, path, saved.n_saved, expected)
            if tokens is None or common_prefix(tokens, expected) != len(expected):
                self.counters["saves_of_others"] += 1  # the slot had gone on with another session
                return None
            if not is_needed():
                return None
            self.tiers.adopt(key, tokens, path, saved.n_written, size, scope)
            adopted = True
            self._usage.bytes_per_token = max(1, saved.n_written // max(1, saved.n_saved))
            return tokens
        finally:
            if not adopted:
                self.tiers.host.unreserve(size)
                await asyncio.to_thread(path.unlink, missing_ok=True)

    async def restore(
        self, slot: Slot, snapshot: HostSnapshot | ColdSnapshot, choice: RestoreChoice | None = None
    ) -> array.array[int] | None:
        """Restores a snapshot into the slot. Returns the tokens that the slot then holds; an empty array if
        llama-server failed to load them.

        Returns None if the snapshot was refused, or was read too slowly for `choice`; then the slot is unchanged."""
        try:
            async with self.tiers.payload(snapshot, choice) as host:
                held = await asyncio.to_thread(read_tokens, host.path, len(host.tokens), host.tokens)
                if held != host.tokens:
                    raise SnapshotRefused("bad_tokens")
                begun = time.monotonic()
                restored = await self._command(slot, "restore", host.path, _Restored)
                if restored is not None and restored.n_restored == len(host.tokens):
                    now_s = time.monotonic()
                    self.tiers.cost.moved("device", host.bytes, now_s - begun, now_s)
                    return host.tokens
        except SnapshotRefused as exc:
            self.counters["restores_declined" if exc.reason == "too_slow" else "restores_refused"] += 1
            log.info("slot_restore_refused", reason=exc.reason)
            return None
        self.counters["restores_failed"] += 1
        return array.array("I")

    async def _command(self, slot: Slot, action: str, path: Path, answers: type[T]) -> T | None:
        body = msgspec.json.encode({"filename": path.name})
        try:
            status, answer = await self._http.call("POST", f"/slots/{slot.number}?action={action}", body)
            if status == 200:
                return msgspec.json.decode(answer, type=answers)
            log.warning("slot_command_refused", command=action, answer=answer[:200])
        except (SessileError, msgspec.DecodeError) as exc:
            log.warning("slot_command_failed", command=action, error=str(exc))
        return None


def read_tokens(path: Path, count: int, expected: array.array[int] | None = None) -> array.array[int] | None:
    """Returns the token ids at the head of a slot's file; None when there are not `count` of them. Those of images are
    taken from the `expected` ids, where the file has images. Blocking."""
    try:
        with path.open("rb") as file:
            magic, _, num_words = _HEAD.unpack(file.read(_HEAD.size))
            words = array.array("I", file.read(4 * min(num_words, count + _WRAPPING)))
    except (OSError, struct.error, ValueError):
        return None
    if magic != _MAGIC:
        return None
    if len(words) >= _WRAPPING and words[0] == _WRAPPED:  # behind the ids there are llama-server's notes on images
        num_words, words = words[2], words[_WRAPPING:]
    if not num_words == len(words) == count:
        return None
    return words if expected is None else _with_images(words, expected)


def _with_images(tokens: array.array[int], expected: array.array[int]) -> array.array[int]:
    """Returns the ids of a file with those of images as expected, if there are images where they are expected.

    Around an image, or its parts, llama-server may put tokens of its own; they are fewer than those of the image."""
    if not names_images(expected):
        return tokens
    length = min(len(tokens), len(expected))
    ours, theirs = np.frombuffer(expected, "I")[:length], np.frombuffer(tokens, "I").copy()
    of_images, firsts = ours >= PATCH, np.flatnonzero(ours >= FIRST)
    shown = of_images & (theirs[:length] == _NULL)
    if (2 * np.add.reduceat(shown, firsts, dtype=int) < np.add.reduceat(of_images, firsts, dtype=int)).any():
        return tokens
    np.copyto(theirs[:length], ours, where=of_images)
    return array.array("I", theirs.tobytes())


def bytes_per_token(metadata: dict[str, Any], architecture: str) -> int:
    """Estimates the bytes of one token's KV in 16 bits, for use before the first save has measured it."""
    try:
        layers = int(metadata[f"{architecture}.block_count"])
        heads = int(metadata[f"{architecture}.attention.head_count"])
        width = int(metadata[f"{architecture}.embedding_length"]) // heads
        kv_heads = metadata.get(f"{architecture}.attention.head_count_kv", heads)
        kv_heads = max(kv_heads) if isinstance(kv_heads, tuple) else int(kv_heads)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 1 << 17
    return 2 * 2 * layers * kv_heads * width
