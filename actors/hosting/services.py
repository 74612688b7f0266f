"""The services that a replica's actors work with: the stores, the services that write answers, and the accounting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from actors.directory.common import Leases
from sessions.billing.prices import PriceBook
from sessions.governance.memory_reader import MemoryReader
from sessions.metrics import Metrics
from sessions.ports import Engine, FilterSet, Keys, Published, SchemaChecker, ServerTools
from sessions.retrieval.scoped_search import ScopedSearch
from sessions.routing.models_file import PoolsNow
from sessions.schemas import InlineSchemaChecker
from sessions.store import Store
from sessions.turn.result_cache import ResultCache


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores that outlive this process, all open. `keys` is None if nothing is encrypted."""

    store: Store
    directory: Leases
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class Inference:
    """The services that answers are made with: a started engine, the filters of input and output, and the checker of
    JSON schemas. Some may be missing: None as `results` means no result cache, as `memories` no memories, as `pools` no
    routing among models, as `tools` no server tools, as `knowledge` no vector stores."""

    engine: Engine
    filters: FilterSet
    schemas: SchemaChecker = field(default_factory=InlineSchemaChecker)
    results: ResultCache | None = None
    memories: MemoryReader | None = None
    pools: PoolsNow | None = None
    tools: ServerTools | None = None
    knowledge: ScopedSearch | None = None


def _ignore(published: Published) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Accounting:
    """The metrics and prices of a replica, and `published`, which is called with all records that become durable (it
    must not block)."""

    metrics: Metrics = field(default_factory=Metrics)
    prices: PriceBook | None = None
    on_published: Callable[[Published], None] = _ignore
