"""The server of these tests: memory journal, real actors and sockets, and an engine that says what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import openai

from actors.directory.memory import MemoryDirectory
from actors.hosting.ownership import Identity
from actors.hosting.runtime import Runtime, RuntimeLimits
from actors.hosting.services import Inference
from inference.simulated import SimulatedEngine, SimulatedOptions
from inference.simulated.engine import SimulatedStream
from persistence.memory.database import MemoryDatabase
from persistence.memory.journal import MemoryJournal
from persistence.memory.store import MemoryStore
from sessions.added_tools import AddedToolCheck
from sessions.clock import Clock
from sessions.model.events import Record
from sessions.model.generation import Chunk, EngineInfo, Finish, GenerationRequest, ThoughtMarks
from sessions.model.types import Principal, ReplicaId, Sampling, SessionId, SessionKey, TenantId, Tokens
from sessions.ports import FilterSet, Member, ServerTools, TextExtractor
from sessions.retrieval.scoped_search import ScopedSearch
from sessions.retrieval.services import Retrieval
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.doors.assembly import new_id, strict_clock
from tests.support.stores.tables import keys_in, records_of, usage_in
from transport.auth.authenticator import Authenticator
from transport.gateway import Gateway, GatewayServices
from transport.history_index import HistoryIndex
from transport.http_api.server import Server
from transport.model_catalog import ModelCard, card_of

SIMULATED = "simulated"
_WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WEATHER: Any = {"type": "function", "function": _WEATHER}  # as chat completions have a function
WEATHER_TOOL: Any = {"type": "function", **_WEATHER, "strict": False}  # as responses have it
WEATHER_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def smallest(schema: Mapping[str, Any]) -> Any:
    """A value that fits a schema as these tests write them."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return smallest(schema["anyOf"][0])
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: smallest(properties[name]) for name in schema.get("required", ())}
    kind = schema["type"]
    first = kind[0] if isinstance(kind, list) else kind
    return {"integer": 1, "number": 0.5, "boolean": True, "array": [], "string": "x"}[first]


class ScriptedEngine(SimulatedEngine):
    """The simulated engine, except that the next answers are the texts in `script`, byte by byte.

    Without a script an answer under a schema is the smallest value that fits it."""

    thoughts: ThoughtMarks | None = None
    call_format = "hermes"

    def __init__(self, options: SimulatedOptions) -> None:
        super().__init__(options)
        self.script: list[str] = []
        self.asked: list[Sampling] = []  # of every run
        self.prompts: list[Tokens] = []
        self._said: dict[SimulatedStream, bytes] = {}
        self._schemas: dict[SessionKey, Mapping[str, Any] | None] = {}

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self.asked.append(request.sampling)
        self.prompts.append(request.prompt)
        wanted = request.sampling.text.format if request.sampling.text is not None else None
        self._schemas[request.key] = None if wanted is None else wanted.get("schema")
        return super().generate(request)

    @property
    def info(self) -> EngineInfo:
        info = super().info
        return EngineInfo(
            model=info.model,
            build=info.build,
            model_fingerprint=info.model_fingerprint,
            context_window=info.context_window,
            slots=info.slots,
            sampling=info.sampling | {"text"},
            tool_format="hermes",
            call_format=self.call_format,
            thoughts=self.thoughts,
        )

    def draw(self, stream: SimulatedStream) -> int | None:
        if stream not in self._said:
            schema = self._schemas.get(stream.key)
            if self.script:
                self._said[stream] = self.script.pop(0).encode()
            elif schema is not None:
                self._said[stream] = msgspec.json.encode(smallest(schema))
            else:
                return super().draw(stream)
        said = self._said[stream]
        return said[stream.decoded] if stream.decoded < len(said) else None


class Serving(NamedTuple):
    server: Server
    gateway: Gateway
    runtime: Runtime
    journal: MemoryJournal
    engine: ScriptedEngine

    def client(self, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.server.url}/v1", api_key=key, max_retries=options.pop("max_retries", 0), **options
        )

    def log(self, session: str) -> Sequence[Record]:
        """The records of a session of the local tenant."""
        return records_of(self.journal.database, SessionKey(TenantId("local"), SessionId(session)))

    async def ended(self, session: str, tenant: str = "local") -> None:
        """Returns when no response of a session is being written."""
        actor = self.runtime.actor(SessionKey(TenantId(tenant), SessionId(session)))
        if actor is None:
            return  # it has left memory, with nothing open
        changed = asyncio.Event()
        stop = self.runtime.watch(actor.key, lambda _: changed.set())
        try:
            while actor.open:
                await changed.wait()
                changed.clear()
        finally:
            stop()

    @property
    def sessions(self) -> list[str]:
        return [key.session for key in keys_in(self.journal.database)]

    @property
    def usage(self) -> int:
        return len(usage_in(self.journal.database))


@asynccontextmanager
async def serving(
    options: SimulatedOptions,
    *,
    keys: Mapping[str, Principal] | None = None,
    store: MemoryDatabase | None = None,
    runtime_limits: RuntimeLimits | None = None,
    output_phrases: Sequence[str] = (),
    filters: FilterSet | None = None,
    engine: ScriptedEngine | None = None,
    tools: ServerTools | None = None,
    knowledge: ScopedSearch | None = None,
    retrieval: Retrieval | None = None,
    documents: TextExtractor | None = None,
    port: int = 0,
    history: HistoryIndex | None = None,
    added_tools: AddedToolCheck | None = None,
) -> AsyncIterator[Serving]:
    journal = MemoryJournal(store)
    directory = MemoryDirectory()
    engine = engine or ScriptedEngine(options)
    now_ms = strict_clock()

    def models() -> list[ModelCard]:
        return [card_of(engine.info, created=1_700_000_000)]

    replica, incarnation = ReplicaId("local"), new_id()
    await journal.open()
    await directory.open()
    await engine.start()
    member = Member(replica=replica, incarnation=incarnation, address="", model=SIMULATED, fingerprint="f")
    try:
        await directory.announce(member)
        async with Runtime(
            Identity(replica, incarnation),
            journal=journal,
            directory=directory,
            inference=Inference(
                engine, filters or KeywordFilterSet(output_phrases=output_phrases), tools=tools, knowledge=knowledge
            ),
            clock=Clock(now_ms, new_id),
            limits=runtime_limits or RuntimeLimits(),
        ) as runtime:
            access = Authenticator(keys or {}, clock=asyncio.get_running_loop().time, now_ms=now_ms)
            services = GatewayServices(
                models=models,
                inspect=lambda principal, _, question: runtime.inspector.inspect(principal, question),
                retrieval=retrieval,
                documents=documents,
                history=history,
                added_tools=added_tools,
            )
            gateway = Gateway(
                runtime,
                MemoryStore(journal=journal),
                access,
                Clock(now_ms, new_id),
                measures=runtime.metrics,
                services=services,
            )
            server = Server(gateway, host="127.0.0.1", port=port)
            await server.start()
            try:
                yield Serving(server, gateway, runtime, journal, engine)
            finally:
                await server.stop()
    finally:
        await engine.close()
        await directory.close()
        await journal.close()


async def another_door(server: Serving) -> Server:
    """A second gateway to the same actors, which knows nothing of the first."""
    now_ms = server.gateway.now_ms
    access = Authenticator({}, clock=asyncio.get_running_loop().time, now_ms=now_ms)
    services = GatewayServices(models=lambda: [card_of(server.engine.info)])
    gateway = Gateway(
        server.runtime, MemoryStore(journal=server.journal), access, Clock(now_ms, new_id), services=services
    )
    door = Server(gateway, host="127.0.0.1", port=0)
    await door.start()
    return door
