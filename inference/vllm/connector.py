"""The KV connector: a session's blocks leave the device as they fill, and come back into freshly allocated ones.

vLLM makes one object in the scheduler and one in each worker (`kv_connector_module_path`, its own extension point; no
fork, no patch). The scheduler half decides what is saved and loaded and writes `SessileConnectorMetadata`; the worker
half hands them to a `BlockCopier`, whose threads move the bytes. Verified against vLLM 0.32.

Invariants:
* A block is saved only when the step that filled it has been processed, and stays allocated until it is read: the
  blocks of a finished request are kept until its file is closed, and those of a preempted one are read into memory
  before the next forward pass.
* A load goes only into blocks that were allocated for it. vLLM keeps those until the load is reported, also for a
  request that was aborted meanwhile.
* Nothing raises into vLLM: what fails here is logged, counted and recomputed.
* Retention is soft: nothing is pinned. Forgetting drops hashes, retiring moves free blocks to where eviction begins.

It does not know sessions, tenants or tiers: a tag is an opaque name.
"""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from inference.vllm.block_copier import BlockCopier
from inference.vllm.connector_metadata import BlockLoad, BlockSave, RequestTransfer, SessileConnectorMetadata
from inference.vllm.parent_watchdog import exit_with_parent
from inference.vllm.worker_events import WorkerEventSender, WorkerUnfit

log = logging.getLogger(__name__)
T = TypeVar("T")

_NO_MATCH: Final[tuple[int | None, bool]] = (0, False)
_NOTHING_HELD: Final[tuple[bool, dict[str, Any] | None]] = (False, None)
_NOTHING_OVER: Final[tuple[set[str] | None, set[str] | None]] = (None, None)
FOLDER: Final = "folder"  # of kv_connector_extra_config: the staging folder
FRONT: Final = "front"  # of kv_connector_extra_config: the server's process id


def contain_errors(fallback: Callable[[], T]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Makes a decorator that logs an exception of a method and returns `fallback()` instead."""

    def wrap(method: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(method)
        def guarded(*args: Any, **kwargs: Any) -> T:
            try:
                return method(*args, **kwargs)
            except Exception:
                log.exception(
                    "the KV connector failed in %s; what it would have restored is recomputed", method.__name__
                )
                return fallback()

        return guarded

    return wrap


def return_none() -> None:
    return None


class _Tracked:
    """The connector's record of a request that came with a RequestTransfer."""

    __slots__ = ("forgotten", "into", "loading", "refused", "request", "resident_tokens", "saved", "transfer")

    def __init__(self, request: Any, transfer: RequestTransfer) -> None:
        self.request = request
        self.transfer = transfer
        self.saved = transfer.first_block  # blocks before this one are in the file, or need not be
        self.resident_tokens = 0
        self.loading = False
        self.into: frozenset[int] = frozenset()  # blocks that the load writes
        self.refused = False  # whether its loaded blocks were unusable: then none are offered again
        self.forgotten: set[str] = set()  # tags of it


class SessileConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is not installed where types are checked
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        folder = Path(self._kv_transfer_config.get_from_extra_config(FOLDER, ""))
        self._block_tokens = int(vllm_config.cache_config.block_size)
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[BlockLoad] = []
        self._closings: list[BlockSave] = []
        self._blocks_of: OrderedDict[str, dict[int, Any]] = OrderedDict()  # tag -> block id -> hash it had
        self._pool: Any = None
        self._copier: BlockCopier | None = None
        if role == KVConnectorRole.WORKER:
            parallel = vllm_config.parallel_config
            self._copier = BlockCopier(WorkerEventSender(folder), int(parallel.rank), int(parallel.world_size))
        else:
            exit_with_parent(int(self._kv_transfer_config.get_from_extra_config(FRONT, 0)))

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a dropped save is a cache miss later, nothing that anybody waits for

    # -- scheduler -------------------------------------------------------------------------------------

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._pool = gpu_block_pool

    @contain_errors(return_none)
    def on_new_request(self, request: Any) -> None:
        if request.kv_transfer_params is None:
            return
        transfer = msgspec.convert(request.kv_transfer_params, RequestTransfer)
        self._tracked[request.request_id] = _Tracked(request, transfer)
        for tag in transfer.forget:
            self._forget(tag)
        for tag in transfer.retire:
            self._retire(tag)

    @contain_errors(lambda: _NO_MATCH)
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.transfer.source is None or tracked.refused:
            return 0, False
        # The last token is always computed: what is sampled comes from it, and no loaded block is written to.
        usable = min(tracked.transfer.source.num_blocks, (request.num_tokens - 1) // self._block_tokens)
        tracked.resident_tokens = num_computed_tokens
        more = usable * self._block_tokens - num_computed_tokens
        return (more, True) if more > 0 else (0, False)

    @contain_errors(return_none)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tracked = self._tracked.get(request.request_id)
        source = tracked.transfer.source if tracked is not None else None
        if tracked is None or source is None or num_external_tokens <= 0:
            return
        first = tracked.resident_tokens // self._block_tokens
        count = num_external_tokens // self._block_tokens
        block_ids = list(blocks.get_block_ids()[0][first : first + count])
        tracked.loading, tracked.into = True, frozenset(block_ids)
        name, resident = tracked.transfer.name, tracked.resident_tokens
        self._loads.append(BlockLoad(request.request_id, name, source, first, block_ids, resident))

    @contain_errors(SessileConnectorMetadata)
    def build_connector_meta(self, scheduler_output: Any) -> SessileConnectorMetadata:
        orders = SessileConnectorMetadata(
            saves=self._closings,
            loads=self._loads,
            preempted=set(scheduler_output.preempted_req_ids or ()),
            idle=scheduler_output.total_num_scheduled_tokens == 0,
        )
        self._closings, self._loads = [], []
        blocks = scheduler_output.kv_connector_block_state
        for request_id in scheduler_output.num_scheduled_tokens:
            tracked = self._tracked.get(request_id)
            if tracked is None or not tracked.transfer.path:
                continue
            full = min(self._full_blocks(tracked.request), tracked.transfer.limit_blocks)
            if full > tracked.saved:
                block_ids = list(blocks.get_block_ids(request_id)[0][tracked.saved : full])
                orders.saves.append(
                    BlockSave(request_id, tracked.transfer.name, tracked.transfer.path, tracked.saved, block_ids)
                )
                tracked.saved = full
        return orders

    @contain_errors(return_none)
    def update_connector_output(self, connector_output: Any) -> None:
        bad = connector_output.invalid_block_ids
        if bad:  # vLLM tries again where nothing of the prompt is left, and would be given the same for ever
            for held in self._tracked.values():
                held.refused = held.refused or (held.loading and not held.into.isdisjoint(bad))
        for request_id in connector_output.finished_recving or ():
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.loading = False

    @contain_errors(lambda: _NOTHING_HELD)
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return False, None
        transfer = tracked.transfer
        held: list[int] = []
        if not tracked.loading:  # else the blocks are the load's until it is over
            full = min(self._full_blocks(request), len(block_ids))
            shared = min(full, transfer.opening_blocks)
            self._remember(transfer.tag, block_ids[shared:full])
            if shared:
                self._remember(transfer.opening, block_ids[:shared])
            for tag in (transfer.tag, transfer.opening):
                if tag in tracked.forgotten:
                    self._forget(tag)
            if transfer.path and transfer.tag not in tracked.forgotten:
                held = list(block_ids[tracked.saved : min(full, transfer.limit_blocks)])
        if not transfer.path:
            return False, None
        keep = not tracked.loading
        self._closings.append(
            BlockSave(request.request_id, transfer.name, transfer.path, tracked.saved, held, close=True, held=keep)
        )
        return keep, None

    def _full_blocks(self, request: Any) -> int:
        """Returns how many leading blocks of a request are full and were computed by steps whose results have been
        processed."""
        done = request.num_computed_tokens - getattr(request, "num_in_flight_tokens", 0)
        return max(0, int(done)) // self._block_tokens

    def _remember(self, tag: str, block_ids: Iterable[int]) -> None:
        known = self._blocks_of.setdefault(tag, {})
        self._blocks_of.move_to_end(tag)
        for block_id in block_ids:
            known[block_id] = self._pool.blocks[block_id].block_hash
        while len(self._blocks_of) > len(self._pool.blocks):
            self._blocks_of.popitem(last=False)  # it has no block left: every one would name a later session

    def _still(self, tag: str) -> list[Any]:
        """Forgets which blocks belong to a tag. Returns those of them that still hold the tag's KV."""
        blocks = []
        for block_id, block_hash in self._blocks_of.pop(tag, {}).items():
            block = self._pool.blocks[block_id]
            if block_hash is not None and block.block_hash == block_hash:
                blocks.append(block)
        return blocks

    def _forget(self, tag: str) -> None:
        for tracked in self._tracked.values():
            if tag in (tracked.transfer.tag, tracked.transfer.opening):
                tracked.forgotten.add(tag)
        blocks = self._still(tag)
        self._pool.evict_blocks({block.block_id for block in blocks})
        self._evict_first(blocks)

    def _retire(self, tag: str) -> None:
        blocks = self._still(tag)
        self._remember(tag, [block.block_id for block in blocks])
        self._evict_first(blocks)

    def _evict_first(self, blocks: list[Any]) -> None:
        """Has these free blocks evicted next, the last ones first: leading blocks are worth more than those that
        follow."""
        free = [block for block in reversed(blocks) if block.ref_cnt == 0 and not block.is_null]
        for block in free:
            self._pool.free_block_queue.remove(block)
        self._pool.free_block_queue.prepend_n(free)

    # -- worker ----------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        copier = self._copier
        assert copier is not None
        try:
            copier.register(kv_caches, int(self._kv_cache_config.num_blocks))
        except Exception as exc:
            log.exception("this model's KV cannot be moved: its sessions live on the device alone")
            copier.sender.send(WorkerUnfit(copier.rank, f"{type(exc).__name__}: {exc}"[:200]))

    @contain_errors(return_none)
    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if self._copier is not None and isinstance(kv_connector_metadata, SessileConnectorMetadata):
            self._copier.finish_reads(kv_connector_metadata.preempted)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.handle_preemptions(connector_metadata)

    @contain_errors(return_none)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._copier is not None and isinstance(self._connector_metadata, SessileConnectorMetadata):
            for load in self._connector_metadata.loads:
                self._copier.load(load)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return  # loads end before their request is scheduled

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return  # blocks are saved whole, in a later step

    @contain_errors(return_none)
    def wait_for_save(self) -> None:
        if self._copier is not None and isinstance(self._connector_metadata, SessileConnectorMetadata):
            for save in self._connector_metadata.saves:
                self._copier.save(save)

    @contain_errors(lambda: _NOTHING_OVER)
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._copier is None:
            return None, None
        idle = isinstance(self._connector_metadata, SessileConnectorMetadata) and self._connector_metadata.idle
        return self._copier.finished(patient=idle)

    @contain_errors(lambda: set[int]())
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._copier.bad_blocks() if self._copier is not None else set()

    @contain_errors(return_none)
    def shutdown(self) -> None:
        if self._copier is not None:
            self._copier.close()
