"""What travels between the front, the connector's scheduler half and its workers: plain data that pickles.

front --Transfer (a request's kv_transfer_params)--> scheduler half --Orders (each step)--> workers
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


class SnapshotSource(msgspec.Struct, frozen=True):
    """A snapshot's payload in the staging folder, with its expected hashes, which the reader checks."""

    path: str
    num_blocks: int  # how many blocks the request may use
    snapshot_id: bytes
    payload_bytes: int
    tags: bytes


class RequestTransfer(msgspec.Struct, frozen=True):
    """The engine's instructions to the connector about one request.

    `tag` is the random text that salts the blocks of the request's session; a deleted session's tag is never used
    again, so its blocks are never found. `opening` is the tag of the first `opening_blocks` blocks, which several
    sessions share. The file at `path` takes the blocks from `first_block` on, up to block number `limit_blocks`."""

    tag: str
    name: str  # the request's name in reports; vLLM gives it an id of its own
    source: SnapshotSource | None = None
    path: str = ""
    first_block: int = 0
    limit_blocks: int = 0
    forget: tuple[str, ...] = ()  # tags of deleted sessions
    opening: str = ""
    opening_blocks: int = 0
    retire: tuple[str, ...] = ()  # tags of sessions that left memory: their blocks go first


@dataclass
class BlockSave:
    """Blocks of a request, from number `first_block` on, that are to be written into its file. With `close` the file is
    closed afterwards."""

    request: str
    name: str
    path: str
    first_block: int
    block_ids: list[int]
    close: bool = False
    held: bool = False  # the scheduler keeps the blocks until this is reported as sent


@dataclass
class BlockLoad:
    """Blocks of a snapshot, `first_block` and following, to be read into freshly allocated blocks."""

    request: str
    name: str
    source: SnapshotSource
    first_block: int
    block_ids: list[int]
    resident_tokens: int


@dataclass
class SessileConnectorMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not installed where types are checked
    saves: list[BlockSave] = field(default_factory=list)
    loads: list[BlockLoad] = field(default_factory=list)
    preempted: set[str] = field(default_factory=set)  # requests whose blocks others are about to overwrite
    idle: bool = False  # whether this step computes no token
