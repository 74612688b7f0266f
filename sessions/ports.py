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
        """Names the continuity of the store; changes when it was restored from a backup or promoted."""
        ...

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        """Compare-and-swap of the fence: the returned head has fence = expected_fence + 1.

        `expected_fence` None means that no head existed: it is made with fence 1, top 0 and `new_epoch`.
        Otherwise the epoch stays, except when the journal's incarnation is not the head's: then `new_epoch` is
        taken. Raises Fenced when the fence is not the expected one (an ordinary answer: read again)."""
        ...

    async def append(self, append: Append) -> None:
        """Returns when everything in `append` is durable. Raises Fenced when (fence, top) do not match, TooLarge."""
        ...

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        """For the owner after its grant; None where there is no head."""
        ...

    async def head(self, key: SessionKey) -> Head | None: ...

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        """Records with offset > after, at most `limit`, and about `bytes_max` (at least one record). None: no head."""
        ...

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None: ...

    async def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        """Where a response of the tenant is, from the append that begins it until its session is purged."""
        ...

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        """Listed, not deleted, top > 0; newest `updated_at` first (ties: session id); `after` is exclusive.

        `user` None lists every user's. An `after` that is unknown raises NotFound."""
        ...

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        """Heads with an open turn, of all tenants, in key order: what a sweep looks at."""
        ...

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        """Sessions that are `due`, at most `limit`. What hangs on their keys goes before their rows do."""
        ...

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        """Erases those of `keys` that are still `due`, and commands older than a time; returns the sessions' keys. That
        one was purged stands in its tenant's audit log, in the same transaction, with `at`."""
        ...


# == tokens =======================================================================================================


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a chat template renders: one message that is not the model's own present answer."""

    role: Role
    text: str
    name: str | None = None  # of the function, for a tool's output
    call_id: str | None = None
    calls: tuple[tuple[str, str, str], ...] = ()  # (call_id, name, arguments) that an assistant message made
    tokens: Tokens | None = None  # the ids of its text and calls, where they are known


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
        """Of vocabulary and template together: a ledger is good only under the same one."""
        ...

    @property
    def starts(self) -> Tokens:
        """What every prompt begins with, of whatever kind."""
        ...

    @property
    def answer_opening(self) -> Tokens: ...

    @property
    def answer_closing(self) -> Tokens: ...

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens: ...

    async def message(self, message: ChatMessage) -> Tokens: ...

    async def text(self, text: str) -> Tokens: ...

    @property
    def gap(self) -> int | None:
        """About how many tokens stand around a message of a whole conversation; None where messages' own ids have
        them."""
        ...

    async def conversation(
        self,
        instructions: str | None,
        tools: Sequence[Tool],
        messages: Sequence[ChatMessage],
        at: UnixMs,
        *,
        answer: bool,
    ) -> Tokens:
        """A whole prompt, the same each time: up to an answer, or to where the next message will stand. Ids that
        messages bring stay where their text stands unchanged; `at`: the time that the prompt may name the day of.
        Raises BadInput where the template refuses the conversation."""
        ...

    @property
    def about(self) -> TokenizerInfo: ...

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """The bytes of each token; of special ones their spelling. Every id is one of the vocabulary."""
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
        """Ends everything that runs, spills what is worth it. Idempotent."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        """Yields chunks, then exactly one Finish. `aclose()` (or cancellation) aborts it: the slot is
        free within one step. A session's KV stays with it afterwards. One session may run several at once
        (branches). End-of-sequence tokens are not yielded. Stop strings are not the engine's concern."""
        ...

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        """A hint: bring the KV for `prompt` up if that is cheap. Returns whether it stands there now. `background`: not
        soon needed, behind everybody, and beside what the session has where there is room. Never raises for KV
        trouble."""
        ...

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        """A hint: the session's turn has ended with calls of these tools, and goes on with their outputs. Until then
        its KV may make room for others'. Returns in how many seconds to `warm` it, so that it is back before they are;
        None: not ahead of them."""
        ...

    async def release(self, key: SessionKey) -> None:
        """The session is deleted: erase its KV from every tier now. `OPENINGS` stands for what is its tenant's."""
        ...

    async def park(self, key: SessionKey) -> None:
        """The session left memory: its KV may be spilled when room is needed."""
        ...

    def place(self, key: SessionKey) -> KVPlace: ...

    def held_sessions(self) -> set[SessionKey]:
        """Whose KV lies here in any tier, as far as is known without waiting. Between `start` and `close`."""
        ...

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> KVExport | None:
        """What is there of the session's KV that covers most of `ledger`, in the snapshot format, in chunks of at most
        1 MiB; None where there is none. The session may be in mid-answer, and goes on. Nothing is raised: what proves
        to be no good ends early, for its target to refuse."""
        ...

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        """Takes a snapshot in; returns the number of tokens that it covers, 0 when it was refused."""
        ...

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast | None:
        """What a turn of so many new tokens would find if it came now; None: this engine makes no forecasts. `model` is
        as in a `GenerationRequest`."""
        ...

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        """A response was let in and will come: forecasts count with it from now on."""
        ...

    def stats(self) -> EngineStats: ...


@runtime_checkable
class ScoresPrompts(Protocol):
    """An engine that also says how probable a prompt is."""

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        """Computes a prompt once, for no session. Returns one score for each of its tokens, with the `top` (at least 1)
        most probable tokens behind it. Raises as `generate`."""
        ...


@runtime_checkable
class ChecksSampling(Protocol):
    """An engine that says what it cannot honour before anything of a turn is written."""

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises the BadInput that `generate` would raise for these parameters."""
        ...


# == keys =========================================================================================================


class DataKey(msgspec.Struct, frozen=True):
    """What one session's bytes at rest are encrypted under. `id` names it beside them and is never used again."""

    id: str
    secret: bytes  # 32 bytes

    def __repr__(self) -> str:
        return f"DataKey({self.id!r})"


class Keys(Protocol):
    """The key store: one data key per session, kept apart from what it encrypts, wrapped by a master key.

    A session may be one that only names something shared within a tenant. Every call raises Unavailable when the
    store is away; what needs a key is not written then, and not read."""

    async def current(self, key: SessionKey) -> DataKey:
        """The session's key, made durable before it is returned for the first time."""
        ...

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        """The key that `key_id` named; None once it is destroyed, or when this master key cannot unwrap it."""
        ...

    async def destroy(self, key: SessionKey) -> None:
        """The session is purged: whatever was encrypted under its key cannot be read any more. Idempotent."""
        ...


# == filters ======================================================================================================


class InputFilter(Protocol):
    """Looks at what a person sends before the engine does. `check` raises Unavailable where nothing could look at the
    text, which may be sent again; every other failure of its own is a verdict."""

    async def check(self, principal: Principal, text: str) -> Verdict: ...

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        """Judges where two texts meet: one ends at `last` of `text` and the next begins at `first`. Only what lies in
        both counts; its span is one of `text`. Cheap enough for the event loop: by phrases and patterns only."""
        ...


class OutputFilter(Protocol):
    """Looks at an answer before its readers do (I8). Pure and incremental; one object per text.

    `feed` takes text as it is decoded and returns how many code points of everything fed so far may be released
    now, with the verdict on the rest; after `finish` nothing is held back any more. A verdict that is
    not `pass` names a span in the coordinates of everything fed. One that blocks or redacts is the filter's last
    word: it has cleared all that stands before the span, and it is fed no more."""

    def feed(self, text: str) -> tuple[int, Verdict]: ...

    def finish(self) -> tuple[int, Verdict]: ...


@runtime_checkable
class LateFilter(OutputFilter, Protocol):
    """An output filter some of whose judgements are made elsewhere: what waits for one is held back meanwhile."""

    async def settle(self) -> None:
        """Returns when all that was fed is judged, or given up on by the policy's rule for that; then `feed` or
        `finish` reports it. Raises nothing."""
        ...


class FilterSet(Protocol):
    """The filters of a tenant's policy."""

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]: ...

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> Sequence[OutputFilter]:
        """For one run of an answer. `shown` is what its readers have of it already; `calls` says that its text may hold
        tool calls, which cannot be taken back once they are made."""
        ...

    def holds_whole(self, principal: Principal) -> bool:
        """An answer is shown when all of it has passed, or not at all."""
        ...

    def version(self, principal: Principal) -> str:
        """Of all that decides what becomes of the principal's texts now."""
        ...


# == schemas ======================================================================================================


class SchemaChecker(Protocol):
    """Judges JSON schemas that somebody sent, and values by them, at a bounded cost. Raises Overloaded when too many
    wait, Unavailable when nothing can judge."""

    async def judge(self, schema: dict[str, Json]) -> SchemaSize | SchemaFault:
        """What a schema counts, or why it cannot be used."""
        ...

    async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
        """What is wrong with `value`, which is JSON, for people; None when it fits."""
        ...


# == documents ====================================================================================================


class TextExtractor(Protocol):
    """Takes the text out of a document that a stranger sent, at a bounded cost and away from everything else."""

    async def extract(self, content: bytes, *, filename: str = "", media_type: str = "") -> DocumentText:
        """What a document is, its content says; name and type decide only where it could be several (HTML, Markdown,
        plain text). The same bytes give the same text. Raises BadInput `file_type_unsupported` and `file_unreadable`,
        TooLarge `file_too_complex`, Overloaded when too many wait, Unavailable when nothing can read it now."""
        ...


# == tools ========================================================================================================


class ServerTools(Protocol):
    """The tools that the server carries out, by tenant, as they are now."""

    def find(self, tenant: TenantId, name: str) -> ServerTool | None: ...

    def offered(self, tenant: TenantId) -> Sequence[str]:
        """Those that each of the tenant's sessions has, named or not."""
        ...

    async def of_server(self, tenant: TenantId, source: McpSource) -> Sequence[ServerTool]:
        """Those of an MCP server that its client names, as far as the tenant has them. Raises NotFound for a server
        that the tenant does not have, Unavailable for one that cannot be reached."""
        ...

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        """Sends a call, reports how far it has come, and waits for what comes of it, within the tool's limits. Raises
        nothing but CancelledError: then it may have been sent. A tool that takes keys is tried again within the
        call."""
        ...

    async def advance(self, step: ProgramStep) -> ProgramSuspended | ToolResult:
        """Runs a program on, to its next call or its end, with nothing of it sent anywhere. Raises nothing but
        CancelledError: then it goes on from the same place again."""
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
    """The live members as of a version that only grows."""

    version: int
    members: tuple[Member, ...]


class Owner(msgspec.Struct, frozen=True):
    """Who holds a session by the directory's word: a hint that is validated at the target."""

    replica: ReplicaId
    incarnation: str
    activation: ActivationId


class Claim(msgspec.Struct, frozen=True):
    """`won` is False when another holds it; `owner` is the winner either way."""

    won: bool
    owner: Owner


class Directory(Protocol):
    """Who owns which session now. A hint, never the authority; losing a race is an ordinary answer.

    Every call raises Unavailable when the directory is away and OutcomeUnknown when a write may have happened."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def announce(self, member: Member) -> View:
        """Joins or renews the lease (TTL 6 s). A member that lost its lease joins again by the same call."""
        ...

    async def withdraw(self, replica: ReplicaId, incarnation: str) -> None:
        """Gives the lease back and with it every session that it holds."""
        ...

    async def view(self) -> View: ...

    async def locate(self, key: SessionKey) -> Owner | None:
        """The owner with a live lease, else None."""
        ...

    async def claim(self, key: SessionKey, owner: Owner, *, instead_of: Owner | None = None) -> Claim:
        """Compare-and-swap: taken when nobody live holds it (or exactly `instead_of` does: early takeover,
        hand-off). Idempotent on the owner."""
        ...

    async def release(self, key: SessionKey, owner: Owner) -> None:
        """Gives one session back, if `owner` holds it."""
        ...

    async def watch(self, gateway: str, keys: Sequence[SessionKey]) -> None:
        """Registers a gateway's interest: whoever activates one of `keys` notifies it. Lapses with the TTL."""
        ...

    async def watchers(self, key: SessionKey) -> list[str]:
        """Gateways with readers of `key`."""
        ...

    async def activated(self, key: SessionKey, owner: Owner) -> None:
        """Notifies the watchers of `key` that `owner` has activated it."""
        ...

    def activations(self, gateway: str) -> AsyncIterator[tuple[SessionKey, Owner]]:
        """The notifications of `activated` to this gateway, from now on. May miss some while the directory is away."""
        ...


# == actors, as a gateway sees them ==================================================================================


class Published(msgspec.Struct, frozen=True, gc=False):
    """Records that have just become durable, in order and without a gap after the watch's earlier ones."""

    key: SessionKey
    epoch: Epoch
    records: tuple[Record, ...]


class Sessions(Protocol):
    """The side that owns actors: routes a command to the session's actor, wherever it lives.

    In one process the runtime implements it directly; between processes the router does, over peer links."""

    async def execute(self, request: Request) -> Ok:
        """Runs a command to its journaled answer. Raises the SessileError that is its answer otherwise."""
        ...

    def watch(self, key: SessionKey, sink: Callable[[Published], None]) -> Callable[[], None]:
        """Calls `sink` (plain function, must not block or raise) with everything that becomes durable from now on,
        whoever owns the session then. Never activates anything. Returns the function that ends it.

        After a change of owner a watch may miss records or see some again: offsets show which, and the journal has
        what is missing."""
        ...
