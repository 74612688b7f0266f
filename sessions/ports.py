"""The ports of the system, all in one place.

`sessions` decides; what it needs from outside is defined here as protocols, which `persistence` (Journal), `inference`
(Engine, Tokenizer), `actors` (Directory) and the filters implement. Each port has one contract suite in
`tests/contract`, run on every implementation.

Common rules. Every `await` may be cancelled; a cancelled call leaves no half-done state behind except where its
docstring says "unknown". Errors are `sessions.model.errors`; adapters translate with `raise ... from exc`.
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
from sessions.model.knowledge.images import DECODED_BYTES_MAX, EDGE_MAX, DecodedImage
from sessions.model.request import Request
from sessions.model.schema_bounds import SchemaSize
from sessions.model.types import (
    ActivationId,
    CommandId,
    Epoch,
    InputImage,
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
from sessions.server_tools import ReportProgress, ServerTool, ToolRequest, ToolResult

# == journal =====================================================================================================


class Journal(Protocol):
    """The durable store of logs: the only authority (I1, I2).

    Contract: `append` first does UPDATE heads SET top = top + n WHERE key AND fence AND top, in the transaction of
    everything else. Concurrent appends are grouped into few transactions, with rows taken in key order, and each append
    gets its own outcome. Nothing is acknowledged before it is on stable storage.

    Errors of every call: Unavailable (nothing happened), OutcomeUnknown (a write may have happened; the caller reads
    `head` before anything else). After its store's `close` every call raises Unavailable.
    """

    @property
    def incarnation(self) -> str:
        """The id of this life of the store. It changes when the store is restored from a backup or a standby is
        promoted."""
        ...

    async def grant(
        self, key: SessionKey, *, expected_fence: int | None, owner: str, new_epoch: Epoch, now_ms: UnixMs
    ) -> Head:
        """Raises the fence by compare-and-swap and makes `owner` the owner: the returned head has fence =
        expected_fence + 1.

        `expected_fence` None means that the caller found no head: then one is made with fence 1, top 0 and `new_epoch`.
        Otherwise the epoch stays, unless the head's incarnation is not the journal's: then `new_epoch` replaces it.
        Raises Fenced when the fence is not the expected one (an ordinary answer: read again).
        """
        ...

    async def append(self, append: Append) -> None:
        """Returns when everything in `append` is durable. Raises Fenced when fence or top are not those of the head,
        and TooLarge."""
        ...

    async def load(self, key: SessionKey, *, now_ms: UnixMs) -> Loaded | None:
        """Returns what the owner of a session needs after its grant; None if the session has no head."""
        ...

    async def head(self, key: SessionKey) -> Head | None: ...

    async def read(self, key: SessionKey, *, after: int, limit: int, bytes_max: int) -> Page | None:
        """Returns records with offsets greater than `after`: at most `limit`, and no more once they have about
        `bytes_max` bytes (but at least one). Returns None if the session has no head."""
        ...

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None: ...

    async def find_response(self, tenant: TenantId, response_id: ResponseId) -> ResponsePlace | None:
        """Returns the session and offset of a response; None if there is no such response, or its session was
        purged."""
        ...

    async def list_heads(
        self, tenant: TenantId, *, user: str | None, limit: int, after: SessionKey | None
    ) -> list[Head]:
        """Returns the heads of listed sessions that are not deleted and have a top above 0: newest `updated_at` first
        (for equal times by session id), from behind the session `after` on.

        `user` None lists every user's sessions. Raises NotFound if `after` is unknown.
        """
        ...

    async def open_heads(self, *, limit: int, after: SessionKey | None) -> list[Head]:
        """Returns heads with an open turn, of all tenants, in key order, for sweeps."""
        ...

    async def purgeable(self, due: Due, *, limit: int) -> list[SessionKey]:
        """Returns at most `limit` sessions that are `due`. Before their rows are deleted, the caller deletes what
        refers to them."""
        ...

    async def purge(
        self, keys: Sequence[SessionKey], due: Due, *, commands_before: UnixMs, at: UnixMs
    ) -> list[SessionKey]:
        """Deletes those of `keys` that are still `due`, and commands older than `commands_before`; returns the deleted
        sessions' keys. In the same transaction each purge is recorded in its tenant's audit log, with the time `at`."""
        ...


# == tokens =======================================================================================================


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a chat template: each message except the answer that the model is to write."""

    role: Role
    text: str
    name: str | None = None  # of the function, for a tool's output
    call_id: str | None = None
    calls: tuple[tuple[str, str, str], ...] = ()  # (call_id, name, arguments) that an assistant message made
    thoughts: str = ""  # of the model before its text and calls, for a template that takes them apart
    tokens: Tokens | None = None  # the ids of its text and calls, if they are known
    names_images: bool = False  # whether its text names images (`sessions.turn.images`); in others a name is text


class Tokenizer(Protocol):
    """Turns a conversation into token ids, in one of two ways.

    If `gap` is None, piece by piece, and pieces are only ever concatenated (the ledger):

        prompt = opening(instructions, tools) + per item: message(...) or
                 answer_opening + the ledger of an answer + answer_closing
                 ... + answer_opening for the answer to come

    Otherwise the tokens around a message depend on other messages: a message's ids are those of its text and calls
    alone, and only `conversation` makes prompts.

    Text that people or models wrote is never parsed for special tokens.
    """

    @property
    def fingerprint(self) -> str:
        """A hash of vocabulary and template together. Token ids are valid only under the same fingerprint."""
        ...

    @property
    def starts(self) -> Tokens:
        """The token ids that every prompt of the model begins with."""
        ...

    @property
    def answer_opening(self) -> Tokens: ...

    @property
    def answer_closing(self) -> Tokens: ...

    async def opening(self, instructions: str | None, tools: Sequence[Tool]) -> Tokens: ...

    async def message(self, message: ChatMessage) -> Tokens: ...

    async def text(self, text: str) -> Tokens: ...

    async def scaffold(self, text: str) -> Tokens:
        """Returns the token ids of a text that the server itself has written. Special tokens in it are recognised."""
        ...

    @property
    def gap(self) -> int | None:
        """About how many tokens a whole conversation has around each message; None if `message` includes them."""
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
        """Returns the ids of a whole prompt, always the same for the same arguments: with `answer` up to the beginning
        of an answer, else up to where the next message will begin. If a message has ids, they are used wherever its
        text is unchanged. `at` is the time whose day the prompt may name, `thinking` the template's hint about
        thoughts. Raises BadInput if the template refuses the conversation."""
        ...

    @property
    def about(self) -> TokenizerInfo: ...

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """Returns the bytes of each token, and the spelling of special tokens. Every id must be in the vocabulary."""
        ...


# == engine =======================================================================================================


class Engine(Protocol):
    """One model copy with continuous batching that keeps each session's KV across turns (I6: KV is a cache).

    Errors of `generate`: Overloaded (no room; nothing ran), EngineLost (it ended and comes back: repeat), Unavailable
    (it is gone), BadInput (the prompt does not fit `context_window`, or there is no such `model`), Internal. Trouble
    with KV is never an error: the KV is recomputed, counted and logged.
    """

    @property
    def info(self) -> EngineInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def start(self) -> None:
        """Loads the model. Raises Unavailable or BadInput; the text says what to do (path, format, memory)."""
        ...

    async def close(self) -> None:
        """Ends everything that runs, and spills KV that is worth keeping. Idempotent."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        """Yields chunks, then exactly one Finish. `aclose()` (or cancellation) aborts the run, and its slot is free
        within one step. The KV stays the session's afterwards. One session may have several runs at once (branches).
        End-of-sequence tokens are not yielded. Stop strings are not the engine's concern."""
        ...

    async def warm(self, key: SessionKey, prompt: Tokens, *, background: bool = False) -> bool:
        """Computes the KV for `prompt` ahead, if that is cheap. It is only a hint. Returns whether the KV is there now.
        With `background` it is not needed soon: the work waits behind everybody's and uses only room that is free
        beside the session's KV. Never raises for trouble with KV."""
        ...

    def tools_called(self, key: SessionKey, tools: Sequence[str]) -> float | None:
        """Informs the engine that the session's turn waits for outputs of these tools, so that its KV may make room for
        others' until then. Returns after how many seconds the caller should `warm` the session, so that its KV is back
        before the outputs come; None if it should not."""
        ...

    async def release(self, key: SessionKey) -> None:
        """Erases the KV of a deleted session from every tier now. The session id `OPENINGS` means the KV that a
        tenant's sessions share."""
        ...

    async def park(self, key: SessionKey) -> None:
        """Informs the engine that the session left memory, so that its KV may be spilled when room is needed."""
        ...

    def place(self, key: SessionKey) -> KVPlace: ...

    def held_sessions(self) -> set[SessionKey]:
        """Returns the sessions whose KV is here in one of the tiers, as far as known without waiting. May be called
        between `start` and `close`."""
        ...

    async def export_kv(self, key: SessionKey, ledger: array[int]) -> KVExport | None:
        """Returns the KV of the session that covers most of `ledger`, in the snapshot format, in chunks of at most 1
        MiB; None if there is none. A run of the session may go on meanwhile. Raises nothing: if KV is damaged the
        chunks end early, and the target refuses them."""
        ...

    async def import_kv(self, key: SessionKey, chunks: AsyncIterator[bytes]) -> int:
        """Takes in a KV snapshot; returns how many tokens it covers, 0 if the snapshot was refused."""
        ...

    def forecast(self, key: SessionKey, share: Share, new_tokens: int, model: str = "") -> Forecast | None:
        """Forecasts the waiting time and pace of a turn of `new_tokens` if it came now; returns None if this engine
        makes no forecasts. `model` is as in a `GenerationRequest`."""
        ...

    def expect(self, tenant: TenantId, response_id: ResponseId, model: str = "") -> None:
        """Informs the engine that a response was admitted and will come, so that forecasts include it from now on."""
        ...

    def stats(self) -> EngineStats: ...


@runtime_checkable
class ScoresPrompts(Protocol):
    """An engine that can also compute how probable a prompt is."""

    async def score(self, prompt: Tokens, top: int) -> list[TokenScore]:
        """Computes a prompt once, for no session. Returns one score for each of its tokens, with the `top` (at least 1)
        most probable tokens behind it. Raises the errors of `generate`."""
        ...


@runtime_checkable
class ChecksSampling(Protocol):
    """An engine that can refuse sampling parameters before a turn is written."""

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises the BadInput that `generate` would raise for these parameters."""
        ...


# == keys =========================================================================================================


class DataKey(msgspec.Struct, frozen=True):
    """The key with which one session's bytes at rest are encrypted. `id` is stored beside the bytes and never used for
    another key."""

    id: str
    secret: bytes  # 32 bytes

    def __repr__(self) -> str:
        return f"DataKey({self.id!r})"


class Keys(Protocol):
    """The key store: one data key per session, kept apart from what it encrypts, wrapped by a master key.

    A session key may also name something that a tenant's sessions share. Every call raises Unavailable when the store
    is away; then nothing that needs a key is written or read.
    """

    async def current(self, key: SessionKey) -> DataKey:
        """Returns the session's key, and makes it durable before it returns it for the first time."""
        ...

    async def find(self, key: SessionKey, key_id: str) -> DataKey | None:
        """Returns the key named `key_id`; None once it is destroyed, or if this master key cannot unwrap it."""
        ...

    async def destroy(self, key: SessionKey) -> None:
        """Destroys the key of a purged session: nothing encrypted with it can be read any more. Idempotent."""
        ...


# == filters ======================================================================================================


class InputFilter(Protocol):
    """Judges what a person sends before the engine gets it. `check` raises Unavailable if nothing could judge the text;
    then the sender may send it again. Every other failure of the filter is a verdict."""

    async def check(self, principal: Principal, text: str) -> Verdict: ...

    def check_seam(self, principal: Principal, text: str, last: int, first: int) -> Verdict:
        """Judges the seam of two texts in `text`: the first ends at index `last`, the second begins at index `first`.
        Only findings that are partly in each count; spans are of `text`. Cheap enough for the event loop: by phrases
        and patterns only."""
        ...


@runtime_checkable
class JudgesImages(InputFilter, Protocol):
    """An input filter that also judges the images of messages."""

    async def check_image(self, principal: Principal, image: InputImage) -> Verdict:
        """Judges an image as models see it. The verdict is `pass`, `flag` or `block`, and its findings count the image
        as one code point. Raises nothing."""
        ...


class OutputFilter(Protocol):
    """Judges an answer before its readers get it (I8). Pure and incremental; one object per text.

    `feed` takes text as it is decoded. It returns how many code points of everything fed so far may be released now,
    and the verdict on the rest. After `finish` nothing is held back any more. A verdict that is not `pass` names a
    span, in positions of everything fed. One that blocks or redacts is the filter's last verdict: the text before the
    span may be released, and the filter is fed no more.
    """

    def feed(self, text: str) -> tuple[int, Verdict]: ...

    def finish(self) -> tuple[int, Verdict]: ...


@runtime_checkable
class LateFilter(OutputFilter, Protocol):
    """An output filter that waits for judgements made elsewhere; the text that is being judged is held back
    meanwhile."""

    async def settle(self) -> None:
        """Waits until all text that was fed is judged, or the policy's rule for missing judgements applies; then `feed`
        or `finish` returns the verdict. Raises nothing."""
        ...


class FilterSet(Protocol):
    """The filters of a tenant's policy."""

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]: ...

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> Sequence[OutputFilter]:
        """Returns filters for one run of an answer. `shown` is the text that its readers have already. `calls`: the
        text may contain tool calls, which cannot be taken back once they are made."""
        ...

    def holds_whole(self, principal: Principal) -> bool:
        """Returns whether an answer is shown only once all of it has passed the filters."""
        ...

    def version(self, principal: Principal) -> str:
        """Returns the version of everything on which the filters' treatment of the principal's texts depends now."""
        ...


# == schemas ======================================================================================================


class SchemaChecker(Protocol):
    """Judges JSON schemas that somebody sent, and values by them, at a bounded cost. Its methods raise Overloaded when
    too many calls wait, Unavailable when nothing can judge."""

    async def judge(self, schema: dict[str, Json]) -> SchemaSize | SchemaFault:
        """Returns a schema's size, or the fault for which it cannot be used."""
        ...

    async def value_problem(self, schema: dict[str, Json], value: str) -> str | None:
        """Returns in words what is wrong with `value`, a JSON text; None if it fits the schema."""
        ...


# == documents ====================================================================================================


class TextExtractor(Protocol):
    """Reads the text of a document that a stranger sent, at a bounded cost and isolated from everything else."""

    async def extract(self, content: bytes, *, filename: str = "", media_type: str = "") -> DocumentText:
        """Returns the text of a document. Its content decides of which kind it is; name and type decide only between
        kinds that look alike (HTML, Markdown, plain text). The same bytes always give the same text. Raises BadInput
        `file_type_unsupported` and `file_unreadable`, TooLarge `file_too_complex`, Overloaded if too many calls wait,
        Unavailable if nothing can read it now."""
        ...


# == images =======================================================================================================


class ImageDecoder(Protocol):
    """Makes an image anew that a stranger sent, at a bounded cost and isolated from everything else."""

    async def decode(
        self, content: bytes, *, edge_max: int = EDGE_MAX, bytes_max: int = DECODED_BYTES_MAX
    ) -> DecodedImage:
        """Returns an image as models take it: upright, in sRGB, on white where it was transparent, of an animation the
        first frame, scaled down until no edge is longer than `edge_max` pixels and it takes at most `bytes_max`. The
        same bytes always give the same image on one version of the library. Raises BadInput `image_type_unsupported`
        for anything but PNG, JPEG, WebP and GIF, and `image_unreadable` for a damaged file; TooLarge
        `image_too_complex` for one of too many bytes, pixels, or seconds; Overloaded if too many calls wait,
        Unavailable if nothing can read it now."""
        ...

    def known(self, sha256: str, *, edge_max: int, bytes_max: int) -> DecodedImage | None:
        """Returns what `decode` returned before for bytes with this hash (hex); None if that is not remembered."""
        ...


# == tools ========================================================================================================


class ServerTools(Protocol):
    """The tools that the server carries out, by tenant, in their present versions."""

    def find(self, tenant: TenantId, name: str) -> ServerTool | None: ...

    def offered(self, tenant: TenantId) -> Sequence[str]:
        """Returns the names of the tools that each session of the tenant has, even if it does not name them."""
        ...

    async def of_server(self, tenant: TenantId, source: McpSource) -> Sequence[ServerTool]:
        """Returns the tools of an MCP server that the tenant may use. Raises NotFound for a server that the tenant does
        not have, Unavailable for one that cannot be reached."""
        ...

    async def call(self, request: ToolRequest, report: ReportProgress | None = None) -> ToolResult:
        """Sends a call, reports its progress, and waits for its result, within the tool's limits. A tool that takes
        keys is retried within the call. Raises nothing but CancelledError; then the call may have been sent."""
        ...


# == directory ====================================================================================================


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as it announces itself to the directory."""

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
    """The live members at one version of the view. Versions only grow."""

    version: int
    members: tuple[Member, ...]


class Owner(msgspec.Struct, frozen=True):
    """The owner of a session, as the directory names it: a hint that the owner itself checks."""

    replica: ReplicaId
    incarnation: str
    activation: ActivationId


class Claim(msgspec.Struct, frozen=True):
    """The answer to a claim. `won` is False if another replica has the session; `owner` is who has it now, in either
    case."""

    won: bool
    owner: Owner


class Directory(Protocol):
    """Knows which replica owns which session now. It is a hint, never the authority; that another replica has won a
    claim is an ordinary answer.

    Every call raises Unavailable when the directory is away and OutcomeUnknown when a write may have happened.
    """

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def announce(self, member: Member) -> View:
        """Joins or renews the lease (TTL 6 s). A member that has lost its lease joins again by the same call."""
        ...

    async def withdraw(self, replica: ReplicaId, incarnation: str) -> None:
        """Gives up the lease, and with it every session that the replica owns."""
        ...

    async def view(self) -> View: ...

    async def locate(self, key: SessionKey) -> Owner | None:
        """Returns the owner of a session if its lease is live; else None."""
        ...

    async def claim(self, key: SessionKey, owner: Owner, *, instead_of: Owner | None = None) -> Claim:
        """Claims a session by compare-and-swap: won if no live replica has it, or if exactly `instead_of` has it (early
        takeover, hand-off). Idempotent for the owner."""
        ...

    async def release(self, key: SessionKey, owner: Owner) -> None:
        """Gives up one session; does nothing unless `owner` has it."""
        ...

    async def watch(self, gateway: str, keys: Sequence[SessionKey]) -> None:
        """Registers a gateway's interest in sessions: a replica that activates one of `keys` notifies it. Lapses with
        the TTL."""
        ...

    async def watchers(self, key: SessionKey) -> list[str]:
        """Returns the gateways that have readers of `key`."""
        ...

    async def activated(self, key: SessionKey, owner: Owner) -> None:
        """Notifies the watchers of `key` that `owner` has activated it."""
        ...

    def activations(self, gateway: str) -> AsyncIterator[tuple[SessionKey, Owner]]:
        """Yields the notifications by `activated` for this gateway from now on. May miss some while the directory is
        away."""
        ...


# == actors, as a gateway sees them ==================================================================================


class Published(msgspec.Struct, frozen=True, gc=False):
    """Records that have just become durable, in order, without a gap after those published before."""

    key: SessionKey
    epoch: Epoch
    records: tuple[Record, ...]


class Sessions(Protocol):
    """The side that owns actors: it routes a command to the session's actor, on whichever replica that is.

    In one process the runtime implements it directly; between processes the router does, over peer links.
    """

    async def execute(self, request: Request) -> Ok:
        """Runs a command and returns its journaled answer. Raises the SessileError that is its answer, if it fails."""
        ...

    def watch(self, key: SessionKey, sink: Callable[[Published], None]) -> Callable[[], None]:
        """Calls `sink` (plain function, must not block or raise) with all records that become durable from now on,
        whichever replica owns the session. Never activates a session. Returns a function that ends the watch.

        After a change of owner a watch may miss records or see some again: offsets show which, and the journal has what
        is missing.
        """
        ...
