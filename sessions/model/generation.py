"""Messages between an actor and an engine: what the engine is, the request, what it yields, its statistics."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sessions.model.errors import BadInput
from sessions.model.types import Json, Principal, ResponseId, Sampling, SessionKey, Tokens

CONTINUOUS_USAGE: Final = "continuous_usage_stats"  # in a response's request: its deltas carry the usage so far
RAW_PROMPT: Final = "raw_prompt"  # in a response's request: its question's text, or these token ids, are its prompt
CONTINUES: Final = "continues"  # in a response's request: it goes on with the words of the answer that it stands below
BACKGROUND_PRIORITY: Final = 10  # behind every tenant's
TRUNCATION: Final = "truncation"  # in a response's request: `auto` leaves the oldest turns out where not all fits
ITEMS_LEFT_OUT: Final = "items_left_out"  # in a response's `service`: how many items its prompt leaves out
GENERATE: Final = "generate"  # in a response's request: false where it only brings up the KV of what comes before it


TOOL_CALLS_MADE: Final = "tool_calls_made"  # in a response's request: server calls of the answer that it goes on with
ATTENDED: Final = "attended"  # in a response's request: its client's leaving cancels it


def is_attended(request: object) -> bool:
    """Whether a response with this request is written for a client that waits, and for nobody who comes back."""
    return isinstance(request, dict) and request.get(ATTENDED) is True


def generates(request: object) -> bool:
    """Whether a response with this request is to be written, and not only prepared for."""
    return not (isinstance(request, dict) and request.get(GENERATE) is False)


def continues(request: object) -> bool:
    """Whether a response with this request goes on with the words of the answer that it stands below."""
    return isinstance(request, dict) and bool(request.get(CONTINUES))


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True, tag="tokenizer"):
    """What clients that prepare prompts by themselves need to know of a model's tokenizer."""

    vocabulary_size: int
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
    special_ids: dict[str, int] = {}  # of the two tokens above
    ends: frozenset[int] = frozenset()  # tokens that end an answer


class ThoughtMarks(msgspec.Struct, frozen=True):
    """What a model's thoughts stand between in its text.

    `opened`: its chat template opens a thought at the end of each prompt, so that an answer begins inside one.
    `none`: what stands at the end of a prompt whose answer is to have no thoughts.
    """

    open: str
    close: str
    opened: bool = False
    none: str = ""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is; placement, KV and the capability checks go by it."""

    model: str  # the public name
    build: str  # engine and version; KV never crosses builds
    model_fingerprint: str  # of the weights, and of what else decides what they compute
    context_window: int  # tokens that prompt and answer may take together, per session
    slots: int  # answers that run at the same time
    sampling: frozenset[str]  # names of the Sampling fields that are honoured
    # It takes none, writes calls as text (in the `call_format`; Hermes' was the first), or parses them itself.
    tool_format: Literal["none", "hermes", "engine"] = "none"
    call_format: str = "hermes"  # of `call_formats`: how the text has them
    continues_formats: bool = False  # an answer in a fixed format goes on from its first tokens as soon as any other
    kv_block_tokens: int = 1  # KV is reused in whole blocks of so many tokens
    aliases: tuple[str, ...] = ()  # other names that clients may request it by
    thoughts: ThoughtMarks | None = None  # None: its model has none that are told apart
    foldings: tuple[str, ...] = ()  # what its chat template refuses, and how it is told instead: see docs/models.md
    smaller: EngineInfo | None = None  # a smaller model beside it, for brownout: same tokens, no smaller window

    @property
    def takes_tools(self) -> bool:
        return self.tool_format != "none"

    @property
    def smaller_model(self) -> str:
        return self.smaller.model if self.smaller is not None else ""


def thinks(sampling: Sampling, request: Json) -> bool:
    """Whether an answer may have thoughts: none that is requested without, goes on with an answer, is a completion of
    a text, or is held to a format or a call from its first token."""
    raw = isinstance(request, dict) and bool(request.get(RAW_PROMPT))
    held = sampling.text is not None and (sampling.text.format or {}).get("type", "text") != "text"
    forced = sampling.tool_choice not in (None, "auto", "none")
    return sampling.thinking is not False and not (raw or held or forced or continues(request))


def unsupported_scores(model: str) -> BadInput:
    """The refusal of log probabilities of a prompt where the engine cannot compute them."""
    message = f"The model {model!r} has no log probabilities of prompts here: leave out 'echo' or 'logprobs'."
    return BadInput("unsupported_parameter", message, param="echo")


def unsupported_tools(model: str) -> BadInput:
    """The refusal of tools that a model cannot call, the same at every door."""
    return BadInput("unsupported_parameter", f"The model {model!r} cannot call tools.", param="tools")


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an engine. `prompt` is whole: the engine finds by itself what its KV already holds of it."""

    key: SessionKey
    response_id: ResponseId
    generation: int  # 1 for the first run of a response; recovery counts on
    prompt: Tokens
    sampling: Sampling
    seed: int
    max_tokens: int  # at least 1; what is left for this response
    emitted: Tokens = ()  # the tail of `prompt` that this response already emitted (penalties, grammar)
    priority: int = 0  # smaller is served earlier
    weight: float = 1.0  # of its tenant's share among tenants of the priority
    shared_prefix: int = 0  # leading tokens of `prompt` that other sessions of the tenant may share
    model: str = ""  # the name of the smaller one where that is to write; "": the engine's own
    cache_scope: bytes = b""  # KV of other sessions whose runs had the same may be reused; b"": only its session's own


def cache_scope_of(principal: Principal, request: Mapping[str, Json] | None) -> bytes:
    """The scope in which a response may reuse KV of other sessions: those of the same caller (tenant, key, user), and
    of the same end user where the caller names one. b"": none.

    Only responses to OpenAI's clients have one, whose `request` is kept: what such a client resends may lie in any of
    its sessions. Who calls is what the server has authenticated; what a request may choose, the end user, chooses among
    the caller's own."""
    if request is None:
        return b""
    end_user = request.get("user") or request.get("safety_identifier")
    caller: list[Any] = [principal.tenant, principal.key_id, principal.user, end_user]
    return hashlib.blake2b(msgspec.msgpack.encode(caller), digest_size=16, person=b"cache_scope").digest()


def drawn_seed(response_id: ResponseId) -> int:
    """The seed of a response whose request names none."""
    return int.from_bytes(hashlib.blake2b(response_id.encode(), digest_size=4).digest(), "big")


def continuation_seed(seed: int, response_id: ResponseId, emitted: int) -> int:
    """The seed of a run that continues after `emitted` tokens: the same whoever computes it (DESIGN.md §4)."""
    if emitted == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}\0{response_id}\0{emitted}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Freshly decoded tokens with their text. Text never ends inside a character: bytes that do wait for the
    token that completes them, so `text` may be empty and then stand for several tokens. `cached_tokens` of the prompt
    were not computed (as in `Finish`): each chunk says so, for a run may be broken off after any."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[Json, ...] = ()
    cached_tokens: int = 0


class Finish(msgspec.Struct, frozen=True):
    """The last thing that a generation yields.

    `prompt_tokens` = len(prompt); `cached_tokens` of them were not computed because their KV was there.
    """

    reason: Literal["stop", "length"]
    prompt_tokens: int
    cached_tokens: int


class TokenScore(NamedTuple):
    """What a model expects behind one token of a prompt: the log probability of the token that stands there (None
    behind the last one), and the most probable tokens with theirs."""

    logprob: float | None
    top: tuple[tuple[int, float], ...]


class KVPlace(msgspec.Struct, frozen=True):
    """Where a session's KV is and how many leading tokens of its ledger it covers."""

    tier: Literal["none", "device", "host", "disk", "redis"]
    tokens: int


class KVExport(NamedTuple):
    """A session's KV on its way to another replica. Whoever requested it closes the chunks."""

    ledger: array[int]  # the tokens that it covers
    chunks: AsyncGenerator[bytes, None]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    slots: int
    running: int
    waiting: int
    counters: dict[str, float]  # monotonic: prefilled_tokens, reused_tokens, decoded_tokens, spills, restores, ...
    gauges: dict[str, float] = {}  # per KV tier: bytes held and allowed, snapshots, measured latency and bandwidth
    smaller: EngineStats | None = None  # of the smaller model; nothing above counts with it
    away: str | None = None  # why turns wait or are refused at present
