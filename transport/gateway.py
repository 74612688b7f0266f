"""The operations of a gateway, the same behind WebSocket, HTTP and gRPC.

A gateway routes commands to actors (`Sessions`), reads from the journal, and owns the feeds that all its
readers share. It holds nothing that another gateway would miss.

Limits: commands under way per principal and in all. Over them a command is refused with `rate_limited` or `overloaded`
and a time to come back; it was not begun. A command that was begun goes on when its client leaves: the same id gets
its answer again (I5).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from sessions.added_tools import AddedToolCheck
from sessions.billing.prices import PriceBook
from sessions.clock import Clock
from sessions.governance.journal_encryption import JournalEncryption
from sessions.limits import TenantLimits
from sessions.machine.appeals import decision_notice
from sessions.metrics import Metrics
from sessions.model.authorization import demand, may_see
from sessions.model.commands import (
    ActorCommand,
    MessageEdit,
    ModelTurn,
    Ok,
    ResponseCancel,
    command_digest,
    schemas_of,
    session_settings_of,
)
from sessions.model.errors import Gone, Limited, NotFound, Overloaded, SessileError, Unavailable
from sessions.model.generation import unseen_image
from sessions.model.inspection import Answer, Question
from sessions.model.journal_types import Head, ResponsePlace
from sessions.model.request import request_of
from sessions.model.reviews import Case
from sessions.model.types import (
    CommandId,
    InputFile,
    InputImage,
    Message,
    Principal,
    ResponseId,
    Sampling,
    Scope,
    SessionId,
    SessionKey,
    TenantId,
    TextOptions,
    Tool,
)
from sessions.ports import ImageDecoder, SchemaChecker, Sessions, TextExtractor
from sessions.retrieval.services import Retrieval
from sessions.routing.models_file import NO_POOLS, PoolsNow, split_head_model
from sessions.schemas import SCHEMA_PARAMS, InlineSchemaChecker, SchemaParams, check_schemas
from sessions.store import Store
from sessions.turn.tool_call_parser import forced_tools
from transport.auth.api_key_cache import ApiKeyCache
from transport.auth.authenticator import Authenticator
from transport.auth.connection_shares import key_of
from transport.files.attachments import place_of_image
from transport.files.door import FILE_BYTES, FetchImage, FileDoor
from transport.history_index import HistoryIndex, MemoryHistory
from transport.model_catalog import Models
from transport.ops.audit_writer import AuditWriter
from transport.ops.metric_sources import register_connection_metrics
from transport.ops.operator_api import OperatorApi
from transport.protocol.frames import Done, Listed
from transport.quotas import Arrival, Quotas
from transport.reading.feeds import Feeds
from transport.reading.log_reader import LogReader, visible
from transport.reading.search import ConversationSearch
from transport.reading.sharing import ConversationShares, ReadRate
from transport.tasks import Tasks

if TYPE_CHECKING:
    from transport.push.door import PushDoor

SWEEP_S: Final = 10.0

log = structlog.get_logger(__name__)


class GatewayLimits(msgspec.Struct, frozen=True, kw_only=True):
    commands_max: int = 4096  # under way, in all
    commands_per_principal_max: int = 1024
    replay_records_max: int = 20_000  # a reader that is further behind gets a snapshot
    silence_s: float = 30.0  # how long a reader of an answer waits for a session that no replica has


class GatewayServices(NamedTuple):
    """Optional services of a gateway. Doors answer `Unavailable`, or do without, where one is None."""

    models: Models = tuple
    unlisted: Collection[str] = ()  # names that are taken and not listed: second ones of models that packages ship
    keys: ApiKeyCache | None = None  # for the routes that administer keys
    history: HistoryIndex | None = None  # shared by the gateways of a cluster; None: this process has its own
    operator_api: OperatorApi | None = None
    encryption: JournalEncryption | None = None
    schemas: SchemaChecker | None = None  # None: schemas are checked on the event loop; for tests
    prices: PriceBook | None = None  # shown to people; replicas have their own for billing
    ignores_unknown: bool = False  # drops unknown parameters of OpenAI's API with a Warning; else they are refused
    inspect: Callable[[Principal, str, Question], Awaitable[Answer]] | None = None  # by a model's name, where it runs
    pools: PoolsNow = lambda: NO_POOLS  # the models file: what model names mean, and which tenants may use them
    documents: TextExtractor | None = None  # extracts the text of files
    images: ImageDecoder | None = None  # makes images safe and small
    fetch_image: FetchImage | None = None  # from hosts that the operator permits
    file_bytes: int = FILE_BYTES  # the largest file
    push: PushDoor | None = None  # None: no push notices
    retrieval: Retrieval | None = None  # embedding models and vector stores
    added_tools: AddedToolCheck | None = None  # checks tools that administrators add; None: the server has no tools
    is_attached: Callable[[SessionKey], bool] = lambda key: True  # whether a session's replica is reachable from here
    replication_lag_s: Callable[[], float | None] = lambda: None  # of the journal's replica; None: it has none
    erase: Callable[[], Awaitable[int]] | None = None  # sweeps erasures in this process; in a cluster the replicas do


class Gateway:
    """The server as its doors see it: attributes are the services that doors use, methods the operations that all doors
    have in common. `start` and `close` belong to one event loop."""

    def __init__(
        self,
        sessions: Sessions,
        store: Store,
        access: Authenticator,
        clock: Clock,
        *,
        limits: GatewayLimits | None = None,
        quotas: Quotas | None = None,
        measures: Metrics | None = None,
        services: GatewayServices | None = None,
    ) -> None:
        """`quotas` None: only the number of running commands is limited."""
        services = services or GatewayServices()
        loop_time = asyncio.get_running_loop().time
        self.access = access
        self.store = store
        self.limits = limits or GatewayLimits()
        self.now_ms = clock.now_ms
        self.new_id = clock.new_id
        self.models = services.models
        self.unlisted = services.unlisted
        self.pools = services.pools
        self.keys = services.keys
        self.operator_api = services.operator_api
        self.replication_lag_s = services.replication_lag_s
        self.encryption = services.encryption
        self.prices = services.prices or PriceBook()
        self.ignores_unknown = services.ignores_unknown
        self.history: HistoryIndex = MemoryHistory(loop_time) if services.history is None else services.history
        self.schemas: SchemaChecker = services.schemas or InlineSchemaChecker()
        self.push = services.push
        self.retrieval = services.retrieval
        self.added_tools = services.added_tools
        self.feeds = Feeds(sessions, self._read_to if self.push is not None else None)
        self.logs = LogReader(store.journal, now_ms=clock.now_ms, replay_records_max=self.limits.replay_records_max)
        self.tasks = Tasks()
        self.counters: Counter[str] = Counter() if quotas is None else quotas.counters
        self.measures = measures or Metrics()
        self.audit = AuditWriter(store.audit, now_ms=clock.now_ms, clock=loop_time, tasks=self.tasks)
        if self.keys is not None:
            self.keys.subscribe(self.audit)
        register_connection_metrics(self.measures, self.counters)
        self.draining = False  # whether the server is shutting down: it takes nothing new
        self.ends_answers = False  # and whether it waits for answers no longer
        self._erase = services.erase
        self._inspect = services.inspect
        self.is_attached = services.is_attached
        self._quotas = quotas
        self._sessions = sessions
        self._journal = store.journal
        self._search = ConversationSearch(store.journal, self.logs, loop_time)
        self.sharing = ConversationShares(
            store.shares, store.end_users, self.logs, self.table, ReadRate(loop_time), clock
        )
        self.files = FileDoor(
            store.files,
            services.documents,
            clock,
            self.table,
            bytes_max=services.file_bytes,
            images=services.images,
            fetch=services.fetch_image,
        )
        self._under_way: Counter[tuple[str, str]] = Counter()
        self._under_way_in_all = 0
        self._sweeper: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the timer that drops the feeds of readers that have left."""
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def close(self) -> None:
        """Cancels running tasks and waits for them. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await self.tasks.close()

    def table(self, tenant: TenantId) -> TenantLimits | None:
        """Returns the limits in force for a tenant; None if nothing is limited."""
        return None if self._quotas is None else self._quotas.table(tenant)

    def drain(self, *, answers: bool = False) -> None:
        """Takes nothing new from now on. What reads a log over HTTP without end gets what is there and then `draining`;
        with `answers`, so does what reads an answer. Idempotent."""
        self.draining = True
        self.ends_answers = self.ends_answers or answers
        self.feeds.wake()

    def count(self, name: str) -> None:
        self.counters[name] += 1

    def _read_to(self, key: SessionKey, offset: int) -> None:
        """Takes back push notices up to `offset`, because a device has read them."""
        self.tasks.start(self._take_out_pushes(key, offset))

    async def _take_out_pushes(self, key: SessionKey, offset: int) -> None:
        try:
            await self.store.push.read_to(key, offset)
        except SessileError as error:  # the effect is only a needless notice
            log.warning("push_reading_failed", error=error.code)

    def _sweep(self) -> None:
        self.feeds.sweep()
        self.start()

    # -- operations -------------------------------------------------------------------------------------------------

    async def execute(
        self,
        principal: Principal,
        command: ActorCommand,
        near: SessionKey | None = None,
        summary: CommandId | None = None,
    ) -> Ok:
        """Runs a command and returns its answer once the journal has it. Raises SessileError if it is refused. If the
        command makes a session, that is placed on the replica of the session `near` if possible. `summary` is the id of
        the summary that the same request asks for next (see `Quotas.execute`)."""
        self.measures.commands.add()
        tracer = self.measures.tracer
        begun_at = tracer.now_s() if tracer is not None else 0.0
        try:
            with self._admitted(principal, "chat"):
                if (settings := session_settings_of(command)) is not None:
                    self.pools().choice(principal.tenant, settings.model)
                tools, text = schemas_of(command)
                if tools or text is not None:
                    forced = forced_tools(command, tools) if isinstance(command, Sampling) else ()
                    await check_schemas(self.schemas, tools, text, forced=forced)
                await self._check_images(principal, command)
                read = await self.files.attachments.command(principal, command, self._edited_files)
                sent = request_of(principal, read, near)
                if read is not command:  # the digest is of the command as sent: a repeat has the same
                    sent = msgspec.structs.replace(sent, digest=command_digest(command))
                if self._quotas is not None:
                    ok = await self._quotas.execute(sent, self._sessions.execute, summary)
                else:
                    ok = await self._sessions.execute(sent)
                if tracer is not None and isinstance(ok.response_id, str):
                    said = {"sessile.command": str(command.__struct_config__.tag)}
                    end = tracer.now_s()
                    tracer.span(
                        "command", principal.tenant, ok.response_id, begun_at=begun_at, ended_at=end, attributes=said
                    )
                return ok
        except SessileError as error:
            self.measures.refused.add(error.code)
            raise

    async def _check_images(self, principal: Principal, command: ActorCommand) -> None:
        """Raises BadInput for an image if the session's model is known to see none, before the image is read. What an
        alias stands for is known when the turn is routed, in the actor."""
        place = place_of_image(command)
        if place is None:
            return
        key, settings = request_of(principal, command).key, session_settings_of(command)
        name = command.model if isinstance(command, ModelTurn) else None
        if name is None and settings is not None:
            name = settings.model or self.pools().file.default
        elif name is None:
            head = await self._journal.head(key)
            if head is None or not may_see(principal, key, head.user):
                return
            alias, name = split_head_model(head.model)
            name = alias or name
        cards = self.models()
        model = next((card for card in cards if name in card.names or (name is None and len(cards) == 1)), None)
        if model is None or model.images or (model.pool is not None and model.pool.models):
            return
        if not await self.applied(principal, key, command.id):  # a repeat gets its answer
            raise unseen_image(f"{place}.type")

    async def _edited_files(self, principal: Principal, command: MessageEdit) -> tuple[InputFile | InputImage, ...]:
        """Returns the files and images of the message that an edit replaces. Raises Forbidden, NotFound, Gone."""
        demand(principal, "read")
        key = SessionKey(principal.tenant, command.session)
        head, state = await self.logs.fold(key, in_thread=True)
        visible(principal, key, head.user, head.deleted_at is not None)
        item = state.items.get(command.item_id)
        return (*item.files, *item.images) if isinstance(item, Message) else ()

    async def check_schemas(
        self,
        principal: Principal,
        tools: Sequence[Tool],
        text: TextOptions | None,
        params: SchemaParams = SCHEMA_PARAMS,
        forced: Sequence[Tool] = (),
    ) -> None:
        """Raises BadInput for a JSON Schema of a tool or of the answer's format that `execute` would refuse. `params`
        has the names of the request's parameters for the error."""
        if tools or text is not None:
            with self._admitted(principal, "chat"):
                await check_schemas(self.schemas, tools, text, params, forced)

    async def inspect(self, principal: Principal, model: str, question: Question) -> Answer:
        """Answers a question about texts on a replica of the model. Raises SessileError."""
        if self._inspect is None:
            raise Unavailable("no_replica", "This process has no model to look at texts with.", retryable=False)
        with self._admitted(principal, "chat"):
            inspect = partial(self._inspect, principal, model, question)
            if self._quotas is None:
                return await inspect()
            return await self._quotas.inspect(principal, question, ResponseId(f"inspection_{self.new_id()}"), inspect)

    async def announce_decision(self, case: Case) -> None:
        """Writes a review's decision into the session's log. Raises SessileError; replicas then retry it."""
        with suppress(NotFound, Gone):  # the session was deleted
            await self._sessions.execute(request_of(*decision_notice(case)))
        await self.store.reviews.mark_delivered(case.id, decision=case.decisions)

    async def cancel(
        self, principal: Principal, session: SessionId, responses: Iterable[ResponseId], *, id_prefix: str
    ) -> None:
        """Cancels responses whose client has left. Logs errors and raises nothing; responses may have ended."""
        for response_id in responses:
            command_id = CommandId(f"{id_prefix}_{self.new_id()}")
            try:
                await self.execute(principal, ResponseCancel(id=command_id, session=session, response_id=response_id))
            except SessileError as error:
                log.info("cancel_failed", session=session, response=response_id, error=error.code)

    async def sweep_erasures(self) -> None:
        """Carries out pending erasures at once if this process can. Logs errors; the regular sweeps retry them."""
        if self._erase is not None:
            try:
                await self._erase()
            except SessileError as error:
                log.warning("erasure_delayed", error=error.code)

    async def get(self, principal: Principal, command_id: str, session: SessionId) -> Done:
        """Returns the state of a session. Raises NotFound, Gone, Unavailable."""
        with self._admitted(principal, "read"):
            head, state = await self.logs.state(principal, SessionKey(principal.tenant, session))
            return Done(id=command_id, session=session, epoch=head.epoch, offset=head.top, state=state)

    async def find_response(self, principal: Principal, response_id: ResponseId) -> ResponsePlace | None:
        """Returns the session and offset of a response; None if there is none with this id that the principal may see.
        Raises Unavailable."""
        with self._admitted(principal, "read"):
            place = await self._journal.find_response(principal.tenant, response_id)
            if place is None or (principal.user is None or principal.role != "user"):
                return place
            head = await self._journal.head(place.key)
            return place if head is not None and may_see(principal, place.key, head.user) else None

    async def applied(self, principal: Principal, key: SessionKey, command_id: CommandId) -> bool:
        """Returns whether a command of the principal was carried out before. Raises Unavailable."""
        return await self._journal.find_command(key, principal.id, command_id) is not None

    async def list(self, principal: Principal, command_id: str, limit: int, after: SessionId | None) -> Listed:
        """Returns the sessions that the principal may see, newest first. Raises NotFound for an unknown `after`."""
        user = principal.user if principal.role == "user" else None
        key = None if after is None else SessionKey(principal.tenant, after)
        with self._admitted(principal, "read"):
            heads = await self._journal.list_heads(principal.tenant, user=user, limit=limit + 1, after=key)
        data = tuple(session_summary(head) for head in heads[:limit])
        last_id = heads[min(len(heads), limit) - 1].key.session if heads else None
        return Listed(id=command_id, data=data, has_more=len(heads) > limit, last_id=last_id)

    async def search(
        self, principal: Principal, command_id: str, query: str, limit: int, after: SessionId | None
    ) -> Listed:
        """Returns the principal's sessions that have every word of `query`. Raises as `ConversationSearch.search`."""
        with self._admitted(principal, "read"):
            page = await self._search.search(principal, query, limit=limit, after=after)
        data = tuple(
            {**session_summary(hit.head), "matches": [match._asdict() for match in hit.matches]} for hit in page.hits
        )
        return Listed(id=command_id, data=data, has_more=page.has_more, last_id=page.last_id)

    @contextmanager
    def _admitted(self, principal: Principal, scope: Scope) -> Iterator[None]:
        self.access.verify(principal)
        demand(principal, scope)
        who = key_of(principal)
        if self._under_way[who] >= self.limits.commands_per_principal_max:
            raise Limited("rate_limited", "Too many commands of this key are under way.", retry_after_ms=500)
        if self._under_way_in_all >= self.limits.commands_max:
            raise Overloaded("overloaded", "Too many commands are under way here.", retry_after_ms=1000)
        self._under_way[who] += 1
        self._under_way_in_all += 1
        try:
            yield
        finally:
            self._under_way_in_all -= 1
            self._under_way[who] -= 1
            if not self._under_way[who]:
                del self._under_way[who]

    def check_arrival(self, principal: Principal, arrival: Arrival) -> None:
        """Raises Limited if the key has no requests left for this arrival. It counts nothing."""
        if self._quotas is not None:
            self._quotas.check_arrival(principal, arrival)

    def pace_arrival(self, principal: Principal, arrival: Arrival) -> float:
        """Counts an arrival in its key's requests per minute. Returns the seconds that the arrival has to wait. Raises
        Limited."""
        return 0.0 if self._quotas is None else self._quotas.arrive(principal, arrival)

    async def arrive(self, principal: Principal, arrival: Arrival) -> None:
        """Counts an arrival in its key's requests per minute and waits until it may begin. Raises Limited."""
        wait_s = self.pace_arrival(principal, arrival)
        if wait_s:
            await asyncio.sleep(wait_s)

    def give_back(self, principal: Principal, arrival: Arrival) -> None:
        """Counts an arrival that was refused because of a limit as a read, which takes less of the key's requests."""
        if self._quotas is not None:
            self._quotas.give_back(principal, arrival)

    def check_connection_rate(self) -> None:
        """Admits a new connection. Raises Overloaded if too many connect at once."""
        if self._quotas is not None:
            self._quotas.connect()

    def check_connectable(self) -> None:
        """Raises Unavailable or Overloaded if a WebSocket would be refused now, whoever opens it."""
        self.check_draining()
        if self._quotas is not None:
            self._quotas.check_room()

    def check_draining(self) -> None:
        """Raises Unavailable if the server is shutting down."""
        if self.draining:
            raise Unavailable("draining", "This server is shutting down.", retry_after_ms=1000)


def session_summary(head: Head) -> dict[str, Any]:
    """Returns the fields of a session that lists show."""
    return {
        "id": head.key.session,
        "title": head.title,
        "model": split_head_model(head.model)[1],
        "metadata": head.metadata,
        "open": head.open,
        "created_at": head.created_at,
        "updated_at": head.updated_at,
    }
