"""The context of every actor of a replica: its stores, its engine, its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from sessions.actor.admission import Admission
from sessions.actor.model_router import ModelRouter
from sessions.governance.memory_reader import MemoryReader
from sessions.limits import Share
from sessions.metrics import Metrics
from sessions.model.types import ContextPolicy, Principal, SessionKey, TenantId, UnixMs
from sessions.ports import Engine, FilterSet, Journal, Published, SchemaChecker, ServerTools
from sessions.retrieval.scoped_search import ScopedSearch
from sessions.turn.context_fitting import ANSWER_ROOM
from sessions.turn.output_accumulator import GenerationLimits
from sessions.turn.result_cache import ResultCache


class ActorLimits(msgspec.Struct, frozen=True):
    mailbox_commands: int = 64
    content_bytes: int = 1_000_000  # at most, of one message or tool output
    tool_deadline_s: float = 600.0
    snapshot_events: int = 512
    journal_patience_s: float = 30.0
    journal_retry_s: float = 0.25
    prepare_s: float = 10.0
    turn: GenerationLimits = GenerationLimits()
    admission: Admission | None = None  # None: every turn is let in
    titles: Callable[[TenantId], bool] | None = None  # whether a tenant's models write titles; None: nobody's
    context_policy: Callable[[TenantId], ContextPolicy | None] | None = None  # for full windows; None: each door's
    answer_room: int = ANSWER_ROOM  # tokens of the window that a prompt leaves to its answer
    answer_tokens: int | None = None  # the most of an answer whose request and session name no limit; None: what fits
    share: Callable[[Principal], Share] = lambda principal: Share()  # who goes first where an engine is full


class ActorContext(msgspec.Struct, frozen=True):
    """The stores, the engine and the limits that all actors of a replica share."""

    journal: Journal
    engine: Engine
    schemas: SchemaChecker
    filters: FilterSet
    replica: str
    now_ms: Callable[[], UnixMs]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    publish: Callable[[Published], None]
    erase: Callable[[SessionKey], Awaitable[None]]  # all KV of a session that is deleted
    limits: ActorLimits
    metrics: Metrics
    results: ResultCache | None = None  # None: every answer is an engine's
    memories: MemoryReader | None = None  # reads what an end user's new sessions begin with; None: nothing
    unread: Callable[[SessionKey], bool] | None = None  # whether no device reads it now; None: nobody is sent a push
    tools: ServerTools | None = None  # tools that the server carries out; None: there are none
    knowledge: ScopedSearch | None = None  # searches what a turn names as knowledge; None: there are no vector stores
    router: ModelRouter | None = None  # chooses the model of each turn; None: always this replica's
