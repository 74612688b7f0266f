"""The server tool `file_search`: finds passages for a model, and says where each of them is from.

It is a server tool like others (`sessions.actor.tool_runner`): call and output are in the log behind the message, so
the prompt before them never changes, and the passages belong to their turn. They pass the filters like other tools'
outputs. It is offered beside the tools of the tools file; if one there has the same name, that one is used.

It searches the stores of the session's user, or those of the tenant as a whole if the session has no user; a service
may name stores of the tenant for a user's session too. What a client's scope names is checked when the tool is named
(`check_search`), and stores that are gone by the time of a search make its output say `missing`. If a search, or a part
of it, takes too long, the answer lacks that part and nothing else: the output says `retrieval_skipped`, what was left
out, and why. A call takes `DEADLINES.whole` seconds at most, however many stores it searches and whatever hangs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sessions.model.errors import NotFound
from sessions.model.generation import RETRIEVAL_SKIPPED
from sessions.model.types import McpSource, Principal, SearchScope, TenantId, Tool
from sessions.ports import ServerTools
from sessions.retrieval.scoped_search import DEADLINES, RESULTS, RESULTS_MAX, ScopedSearch, StoreChoice
from sessions.retrieval.search import Deadlines, PassageSearch, SkipReason, Stage
from sessions.retrieval.vector_stores import ListSlice, Passage, PassageIndex
from sessions.server_tools import FILE_SEARCH, ReportProgress, ServerTool, ToolRequest, ToolResult

NAME: Final = FILE_SEARCH
STORES_MAX: Final = 16  # that one call may search

TOOL: Final = ServerTool(
    tool=Tool(
        name=NAME,
        description="Looks up passages in the user's documents. Cite what you use by its number, like [1].",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for", "maxLength": 2_000},
                "max_num_results": {"type": "integer", "minimum": 1, "maximum": RESULTS_MAX},
            },
            "required": ["query"],
        },
        server=True,
    ),
    takes_keys=True,  # it changes nothing, so after a crash it may search again
)


class _Arguments(msgspec.Struct, frozen=True):
    query: str
    max_num_results: int | None = None


class FileSearch:
    """The port `ServerTools` with the tool `file_search` added to the tools of `others`."""

    def __init__(
        self,
        index: PassageIndex,
        search: PassageSearch,
        others: ServerTools | None,
        deadlines: Deadlines = DEADLINES,
    ) -> None:
        self._index = index
        self._scoped = ScopedSearch(index, search, deadlines)
        self._others = others
        self._tool = replace(TOOL, check_search=self.check_search)

    def find(self, tenant: TenantId, name: str) -> ServerTool | None:
        other = self._others.find(tenant, name) if self._others is not None else None
        return self._tool if other is None and name == NAME else other

    async def check_search(self, principal: Principal, scope: SearchScope) -> None:
        await self._scoped.check(principal, scope)

    def offered(self, tenant: TenantId) -> Sequence[str]:
        return self._others.offered(tenant) if self._others is not None else ()

    async def of_server(self, tenant: TenantId, source: McpSource) -> Sequence[ServerTool]:
        if self._others is None:
            raise NotFound(
                "tool_not_found", f"The server has no MCP server {source.server_label!r} for you.", param="tools"
            )
        return await self._others.of_server(tenant, source)

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        others = self._others
        if others is not None and (request.name != NAME or others.find(request.key.tenant, NAME) is not None):
            return await others.call(request, report)
        if request.name != NAME:
            return ToolResult(outcome="not_sent", output="tool_not_found: there is no such tool any more.")
        try:
            arguments = msgspec.json.decode(request.arguments, type=_Arguments)
        except msgspec.MsgspecError:
            return ToolResult(outcome="not_sent", output="invalid_arguments: `query` is a text.")
        choose, limit = partial(self._stores, request), _limit(request, arguments)
        retrieved = await self._scoped.search(choose, arguments.query, request.search, limit=limit)
        skipped = (retrieved.error,) if retrieved.error else tuple(retrieved.reasons)
        output = _output(retrieved.passages, (RETRIEVAL_SKIPPED, *skipped) if skipped else (), retrieved.reasons)
        return ToolResult(outcome="failed" if retrieved.error else "done", output=output)

    async def _stores(self, request: ToolRequest) -> StoreChoice:
        """Returns the stores that the client names, else those of the session's owner; and whether some that it names
        are missing."""
        scope, tenant = request.search, request.key.tenant
        if scope is None:
            part = ListSlice(limit=STORES_MAX)
            return await self._index.stores(tenant, request.user, anybody=False, part=part), False
        stores = await self._scoped.in_scope(tenant, request.user, scope)
        return stores, len(stores) < len(set(scope.vector_store_ids))


def _limit(request: ToolRequest, arguments: _Arguments) -> int:
    """Returns how many passages a call finds at most: as many as the model wants, and not more than the client."""
    most = RESULTS_MAX if request.search is None else request.search.results_max or RESULTS_MAX
    wanted = arguments.max_num_results
    if wanted is None:
        return RESULTS if request.search is None or request.search.results_max is None else most
    return min(max(wanted, 1), most)


def _output(passages: Sequence[Passage], skipped: Sequence[str], reasons: Mapping[Stage, SkipReason]) -> str:
    results: list[dict[str, Any]] = [
        {
            "number": number,
            "file_id": passage.file,
            "filename": passage.filename,
            "attributes": passage.attributes,
            "start": passage.start,
            "end": passage.end,
            "score": round(passage.score, 4),
            "text": passage.text,
        }
        for number, passage in enumerate(passages, 1)
    ]
    output: dict[str, Any] = {"results": results}
    if skipped:
        output |= {"skipped": list(skipped), "reasons": dict(reasons)}
    return json.dumps(output, ensure_ascii=False, separators=(",", ":"))
