"""The ports of the system: every seam on one page.

`sessions` decides; what it needs from the world stands here as protocols that `persistence` (Journal),
`inference` (Engine, Tokenizer), `actors` (Directory) and the filters implement. Each port has one contract
suite in `tests/contract`, run on every implementation.

Common rules. Every `await` may be cancelled; a cancelled call leaves no half-done state behind except where
its docstring says "unknown". Errors are `sessions.model.errors`; adapters translate with `raise ... from exc`.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from sessions.limits import Forecast, Share
from sessions.model.commands import Ok
from sessions.model.events import Record
from sessions.model.generation import (
    Chunk,
    EngineInfo,
    EngineStats,
    Finish,
    GenerationRequest,
    KVExport,
    KVPlace,
    TokenizerInfo,
    TokenScore,
)
from sessions.model.journal_types import Append, CommandRecord, Due, Head, Loaded, Page, ResponsePlace
from sessions.model.json_schema import SchemaFault
from sessions.model.knowledge.documents import DocumentText
from sessions.model.request import Request
from sessions.model.schema_bounds import SchemaSize
from sessions.model.types import (
    ActivationId,
    CommandId,
    Epoch,
    Json,
    McpSource,
    Principal,
    ReplicaId,
    ResponseId,
    Role,
    Sampling,
    SessionKey,
    TenantId,
    Tokens,
    Tool,
    UnixMs,
)
from sessions.model.verdicts import Verdict
from sessions.server_tools import ProgramStep, ProgramSuspended, ReportProgress, ServerTool, ToolRequest, ToolResult

# == journal =====================================================================================================


class Journal(Protocol):
    """The durable store of logs: the only authority (I1, I2).

    Contract: `append` first does UPDATE heads SET top = top + n WHERE key AND fence AND top, in the transaction of
    everything else. Concurrent appends are grouped into few transactions, rows taken in key order, each answered
    by itself. Nothing is acknowledged before it is on stable storage.

    Errors of every call: Unavailable (nothing happened), OutcomeUnknown (a write may have happened; the caller reads
    `head` before anything else). After its store's `close` every call raises Unavailable.
    """

    @property
    def incarnation(self) -> str:
        """The id of the store's continuity; it changes when the store is restored from a backup or promoted."""
        ...

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        """Changes the fence by compare-and-swap: the returned head has fence = expected_fence + 1.

        `expected_fence` None means that no head existed: it is made with fence 1, top 0 and `new_epoch`.
        Otherwise the epoch stays, except when the journal's incarnation is not the head's: then `new_epoch` is
        taken. Raises Fenced when the fence is not the expected one (an ordinary answer: read again)."""
        ...

    async def append(self, append: Append) -> None:
        """Returns when everything in `append` is durable. Raises Fenced when (fence, top) do not match, TooLarge."""
        ...

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        """Returns what the owner of a session needs after its grant; None if there is no head."""
        ...

    async def head(self, key: SessionKey) -> Head | None: ...

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        """Returns records with offset > after, at most `limit`, and about `bytes_max` (at least one). None: there is
        no head."""
        ...

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None: ...

    async def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        """Returns the session and offset of a response, from the append that begins it until its session is purged."""
        ...

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        """Returns listed sessions, not deleted, top > 0; newest `updated_at` first (ties: session id); `after` is
        exclusive.

        `user` None lists every user's. An `after` that is unknown raises NotFound."""
        ...

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        """Returns heads with an open turn, of all tenants, in key order, for sweeps."""
        ...

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        """Returns sessions that are `due`, at most `limit`. What depends on their keys is deleted before their rows
        are."""
        ...

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        """Deletes those of `keys` that are still `due`, and commands older than `commands_before`; returns the deleted
        sessions' keys. Each purge is in its tenant's audit log, in the same transaction, at time `at`."""
        ...


# == tokens =======================================================================================================


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a chat template: any message but the answer that the model is writing."""

    role: Role
    text: str
    name: str | None = None  # of the function, for a tool's output
    call_id: str | None = None
    calls: tuple[tuple[str, str, str], ...] = ()  # (call_id, name, arguments) that an assistant message made
    thoughts: str = ""  # of the model before its text and calls, for a template that takes them apart
    tokens: Tokens | None = None  # the ids of its text and calls, if they are known


class Tokenizer(Protocol):
    """Turns a conversation into token ids, in one of two ways.

    Where `gap` is None, piece by piece; pieces are only ever concatenated (the ledger):

    prompt = opening(instructions, tools) + per item: message(...) or
             answer_opening + the ledger of an answer + answer_closing
             ... + answer_opening for the answer to come

    Else what stands around a message depends on others: a message's ids are those of its text and calls alone, and
    only `conversation` makes prompts.

    Text that people or models wrote is never parsed for special tokens.
    """

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and template together: token ids are valid only under the same one."""
        ...

    @property
    def starts(self) -> Tokens:
        """The token ids that every prompt begins with, of whatever kind."""
        ...

    @property
    def answer_opening(self) -> Tokens: ...

    @property
    def answer_closing(self) -> Tokens: ...

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens: ...

    async def message(self, message: ChatMessage) -> Tokens: ...

    async def text(self, text: str) -> Tokens: ...

    async def scaffold(self, text: str) -> Tokens:
        """Returns the token ids of a text by the server, in which special tokens are recognised."""
        ...

    @property
    def gap(self) -> int | None:
        """About how many tokens stand around each message in a whole conversation; None if `message` includes them."""
        ...

    async def conversation(
        self,
        instructions: str | None,
        tools: Sequence[Tool],
        messages: Sequence[ChatMessage],
        at: UnixMs,
        *,
        answer: bool,
        thinking: str = "",
    ) -> Tokens:
        """Returns the ids of a whole prompt, the same each time: up to an answer, or to where the next message will
        stand. Ids that messages bring are used where their text stands unchanged. `at`: the time whose day the prompt
        may name; `thinking`: what the template is told of thoughts. Raises BadInput if the template refuses the
        conversation."""
        ...

    @property
    def about(self) -> TokenizerInfo: ...

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """Returns the bytes of each token; for special tokens their spelling. Every id must be in the vocabulary."""
        ...


# == engine =======================================================================================================


class Engine(Protocol):
    """One model copy with continuous batching that keeps each session's KV across turns (I6: KV is a cache).

    Errors of `generate`: Overloaded (no room; nothing ran), EngineLost (it ended and comes back: repeat),
    Unavailable (it is gone), BadInput (the prompt does not fit `context_window`, or there is no such `model`),
    Internal. KV trouble of any kind is never an error: it means recompute, a counter and a log line.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def start(self) -> None:
        """Loads the model. Raises Unavailable or BadInput that says what to do (path, format, memory)."""
        ...

    async def close(self) -> None:
        """Ends everything that runs, and spills KV that is worth it. Idempotent."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        """Yields chunks, then exactly one Finish. `aclose()` (or cancellation) aborts it: the slot is
        free within one step. A session's KV stays with it afterwards. One session may run several at once
        (branches). End-of-sequence tokens are not yielded. Stop strings are not the engine's concern."""
        ...

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        """Computes the KV for `prompt` if that is cheap: a hint. Returns whether it is there now. `background`: it is
        not needed soon, so it waits behind everybody and uses only free room beside the session's KV. Never raises for
        KV trouble."""
        ...

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        """Tells that the session's turn has ended with calls of these tools, and goes on with their outputs; until
        then its KV may make room for others'. Returns the seconds after which to `warm` it, so that it is back before
        they are; None: it should not be warmed."""
        ...

    async def release(self, key: SessionKey) -> None:
        """Erases the KV of a deleted session from every tier now. `OPENINGS` stands for the KV that a tenant's
        sessions share."""
        ...

    async def park(self, key: SessionKey) -> None:
        """Tells that the session left memory: its KV may be spilled when room is needed."""
        ...

    def place(self, key: SessionKey) -> KVPlace: ...

    def held_sessions(self) -> set[SessionKey]:
        """Returns the sessions whose KV is here in any tier, as far as known without waiting. Between `start` and
        `close`."""
        ...

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> KVExport | None:
        """Returns the part of the session's KV that covers most of `ledger`, in the snapshot format, in chunks of at
        most 1 MiB; None if there is none. The session may be in mid-answer, and goes on. Raises nothing: damaged KV
        ends early, and the target refuses it."""
        ...

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        """Takes in a KV snapshot; returns how many tokens it covers, 0 if it was refused."""
        ...

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast | None:
        """Forecasts what a turn of `new_tokens` would meet if it came now; None if this engine makes no forecasts.
        `model` is as in a `GenerationRequest`."""
        ...

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        """Tells that a response was let in and will come: forecasts include it from now on."""
        ...

    def stats(self) -> EngineStats: ...


@runtime_checkable
class ScoresPrompts(Protocol):
    """An engine that also computes how probable a prompt is."""

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        """Computes a prompt once, for no session. Returns one score for each of its tokens, with the `top` (at least 1)
        most probable tokens behind it. Raises as `generate`."""
        ...


@runtime_checkable
class ChecksSampling(Protocol):
    """An engine that can refuse sampling parameters before anything of a turn is written."""

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises the BadInput that `generate` would raise for these parameters."""
        ...


# == keys =========================================================================================================


class DataKey(msgspec.Struct, frozen=True):
    """The key that one session's bytes at rest are encrypted with. `id` is stored beside them and is never used
    again."""

    id: str
    secret: bytes  # 32 bytes

    def __repr__(self) -> str:
        return f"DataKey({self.id!r})"


class Keys(Protocol):
    """The key store: one data key per session, kept apart from what it encrypts, wrapped by a master key.

    A session may be one that only names something shared within a tenant. Every call raises Unavailable when the
    store is away; what needs a key is not written then, and not read."""

    async def current(self, key: SessionKey) -> DataKey:
        """Returns the session's key, made durable before it is returned for the first time."""
        ...

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        """Returns the key named `key_id`; None once it is destroyed, or if this master key cannot unwrap it."""
        ...

    async def destroy(self, key: SessionKey) -> None:
        """Destroys the key of a purged session: nothing encrypted with it can be read any more. Idempotent."""
        ...


# == filters ======================================================================================================


class InputFilter(Protocol):
    """Judges what a person sends before the engine gets it. `check` raises Unavailable if nothing could judge the
    text, which may be sent again; every other failure of its own is a verdict."""

    async def check(self, principal: Principal, text: str) -> Verdict: ...

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        """Judges the seam of two texts: one ends at `last` of `text` and the next begins at `first`. Only findings
        that lie in both count; spans are of `text`. Cheap enough for the event loop: by phrases and patterns only."""
        ...


class OutputFilter(Protocol):
    """Judges an answer before its readers get it (I8). Pure and incremental; one object per text.

    `feed` takes text as it is decoded and returns how many code points of everything fed so far may be released
    now, with the verdict on the rest; after `finish` nothing is held back any more. A verdict that is
    not `pass` names a span in the coordinates of everything fed. One that blocks or redacts is the filter's last
    word: it has cleared all that stands before the span, and it is fed no more."""

    def feed(self, text: str) -> tuple[int, Verdict]: ...

    def finish(self) -> tuple[int, Verdict]: ...


@runtime_checkable
class LateFilter(OutputFilter, Protocol):
    """An output filter that waits for judgements made elsewhere; the text that they are about is held back
    meanwhile."""

    async def settle(self) -> None:
        """Returns when all text that was fed is judged, or given up on by the policy's rule for that; then `feed` or
        `finish` reports it. Raises nothing."""
        ...


class FilterSet(Protocol):
    """The filters of a tenant's policy."""

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]: ...

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> Sequence[OutputFilter]:
        """Returns filters for one run of an answer. `shown` is the text that its readers have already; `calls`: its
        text may contain tool calls, which cannot be taken back once they are made."""
        ...

    def holds_whole(self, principal: Principal) -> bool:
        """Returns whether an answer is shown only when all of it has passed, or not at all."""
        ...

    def version(self, principal: Principal) -> str:
        """Returns the version of everything that decides what filters do with the principal's texts now."""
        ...


# == schemas ======================================================================================================


class SchemaChecker(Protocol):
    """Judges JSON schemas that somebody sent, and values by them, at a bounded cost. Raises Overloaded when too many
    wait, Unavailable when nothing can judge."""

    async def judge(self, schema: dict[str, Json]) -> SchemaSize | SchemaFault:
        """Returns a schema's size, or why it cannot be used."""
        ...

    async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
        """Returns what is wrong with `value`, a JSON text, for people; None if it fits."""
        ...


# == documents ====================================================================================================


class TextExtractor(Protocol):
    """Takes the text out of a document that a stranger sent, at a bounded cost and away from everything else."""

    async def extract(self, content: bytes, *, filename: str = "", media_type: str = "") -> DocumentText:
        """Returns the text of a document. Its content says what it is; name and type decide only between kinds that
        look alike (HTML, Markdown, plain text). The same bytes give the same text. Raises BadInput
        `file_type_unsupported` and `file_unreadable`, TooLarge `file_too_complex`, Overloaded if too many wait,
        Unavailable if nothing can read it now."""
        ...


# == tools ========================================================================================================


class ServerTools(Protocol):
    """The tools that the server carries out, by tenant, as they are now."""

    def find(self, tenant: TenantId, name: str) -> ServerTool | None: ...

    def offered(self, tenant: TenantId) -> Sequence[str]:
        """Returns the names of tools that each session of the tenant has, whether it names them or not."""
        ...

    async def of_server(self, tenant: TenantId, source: McpSource) -> Sequence[ServerTool]:
        """Returns the tools of an MCP server, as far as the tenant has them. Raises NotFound for a server that the
        tenant does not have, Unavailable for one that cannot be reached."""
        ...

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        """Sends a call, reports its progress, and waits for its result, within the tool's limits. Raises nothing but
        CancelledError, after which it may have been sent. A tool that takes keys is retried within the call."""
        ...

    async def advance(self, step: ProgramStep) -> ProgramSuspended | ToolResult:
        """Runs a program to its next call, which is not sent, or to its end. Raises nothing but CancelledError, after
        which it goes on from the same point again."""
        ...


# == directory ====================================================================================================


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as the directory knows it."""

    replica: ReplicaId
    incarnation: str  # new at every start of the process
    address: str  # host:port of its peer link; "" in one process
    model: str
    fingerprint: str  # model, tokenizer and engine: what must be equal for a session to move there
    weight: float = 1.0
    load: float = 0.0  # 0 idle ... 1 full; may exceed 1
    draining: bool = False
    protocol: int = 1  # the oldest peer protocol that it speaks, which is all that programs up to 0.2.0 look at
    engine: EngineInfo | None = None  # what it serves, for client-facing endpoints
    protocols: tuple[int, int] | None = None  # the oldest and the newest; None: it speaks `protocol` alone
    version: str = ""  # of its program


class View(msgspec.Struct, frozen=True):
    """The live members at one version; versions only grow."""

    version: int
    members: tuple[Member, ...]


class Owner(msgspec.Struct, frozen=True):
    """The holder of a session, as the directory says: a hint that is validated at the target."""

    replica: ReplicaId
    incarnation: str
    activation: ActivationId


class Claim(msgspec.Struct, frozen=True):
    """The answer to a claim. `won` is False if another replica holds the session; `owner` is the winner either way."""

    won: bool
    owner: Owner


class Directory(Protocol):
    """Knows which replica owns which session now. A hint, never the authority; losing a race is an ordinary answer.

    Every call raises Unavailable when the directory is away and OutcomeUnknown when a write may have happened."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def announce(self, member: Member) -> View:
        """Joins or renews the lease (TTL 6 s). A member that lost its lease joins again by the same call."""
        ...

    async def withdraw(self, replica: ReplicaId, incarnation: str) -> None:
        """Gives up the lease, and with it every session that the replica holds."""
        ...

    async def view(self) -> View: ...

    async def locate(self, key: SessionKey) -> Owner | None:
        """Returns the owner if its lease is live, else None."""
        ...

    async def claim(self, key: SessionKey, owner: Owner, *, instead_of: Owner | None = None) -> Claim:
        """Claims a session by compare-and-swap: won if no live replica holds it, or if exactly `instead_of` does
        (early takeover, hand-off). Idempotent for the owner."""
        ...

    async def release(self, key: SessionKey, owner: Owner) -> None:
        """Gives up one session, if `owner` holds it."""
        ...

    async def watch(self, gateway: str, keys: Sequence[SessionKey]) -> None:
        """Registers a gateway's interest: whoever activates one of `keys` notifies it. Lapses with the TTL."""
        ...

    async def watchers(self, key: SessionKey) -> list[str]:
        """Returns the gateways that have readers of `key`."""
        ...

    async def activated(self, key: SessionKey, owner: Owner) -> None:
        """Notifies the watchers of `key` that `owner` has activated it."""
        ...

    def activations(self, gateway: str) -> AsyncIterator[tuple[SessionKey, Owner]]:
        """Yields the notifications of `activated` for this gateway from now on. May miss some while the directory is
        away."""
        ...


# == actors, as a gateway sees them ==================================================================================


class Published(msgspec.Struct, frozen=True, gc=False):
    """Records that have just become durable, in order, without a gap after those published before."""

    key: SessionKey
    epoch: Epoch
    records: tuple[Record, ...]


class Sessions(Protocol):
    """The side that owns actors: routes a command to the session's actor, wherever it lives.

    In one process the runtime implements it directly; between processes the router does, over peer links."""

    async def execute(self, request: Request) -> Ok:
        """Runs a command to its journaled answer. Raises the SessileError that is its answer, if it fails."""
        ...

    def watch(self, key: SessionKey, sink: Callable[[Published], None]) -> Callable[[], None]:
        """Calls `sink` (plain function, must not block or raise) with everything that becomes durable from now on,
        whoever owns the session then. Never activates anything. Returns a function that ends the watch.

        After a change of owner a watch may miss records or see some again: offsets show which, and the journal has
        what is missing."""
        ...
