"""Vector stores that a request names for `file_search`: each must be there for whoever asks."""

from __future__ import annotations

from collections.abc import Sequence

from sessions.model.errors import NotFound
from sessions.model.types import Principal
from sessions.retrieval.vector_stores import StoreId, may_see_store, store_not_found
from transport.gateway import Gateway
from transport.openai.request_models import FileSearchTool


async def check_named_stores(gateway: Gateway, principal: Principal, tools: Sequence[object]) -> None:
    """Raises NotFound for a vector store that is not there for the principal. Without stores in this process nothing is
    checked: the replica has no tool `file_search` then."""
    stores = None if gateway.retrieval is None else gateway.retrieval.vector_stores
    for at, tool in enumerate(tools):
        if stores is None or not isinstance(tool, FileSearchTool):
            continue
        for name in tool.vector_store_ids:
            store = await stores.passages.store(principal.tenant, StoreId(name))
            if store is None or not may_see_store(principal, store):
                missing: NotFound = store_not_found(name)
                missing.param = f"tools[{at}].vector_store_ids"
                raise missing
