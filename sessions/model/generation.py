"""The messages between an actor and an engine: the engine's properties, the request, what it yields, and its
statistics."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from itertools import compress
from operator import attrgetter, ne
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sessions.model.errors import BadInput
from sessions.model.types import InputImage, Json, Principal, ResponseId, Sampling, SessionKey, Tokens

CONTINUOUS_USAGE: Final = "continuous_usage_stats"  # in a response's request: its deltas carry the usage so far
RAW_PROMPT: Final = "raw_prompt"  # in a response's request: its question's text, or these token ids, are its prompt
CONTINUES: Final = "continues"  # in a response's request: it goes on with the words of the answer that it stands below
BACKGROUND_PRIORITY: Final = 10  # behind every tenant's turns
TRUNCATION: Final = "truncation"  # in a response's request: `auto` leaves the oldest turns out where not all fits
ITEMS_LEFT_OUT: Final = "items_left_out"  # in a response's `service`: how many items its prompt leaves out
RETRIEVAL_SKIPPED: Final = "retrieval_skipped"  # in a response's `service`: what was not searched for it, and why
GENERATE: Final = "generate"  # in a response's request: false where it only brings up the KV of what comes before it


TOOL_CALLS_MADE: Final = "tool_calls_made"  # in a response's request: server calls of the answer that it goes on with
HONOURED_BY_TURNS: Final = frozenset(
    {"max_output_tokens", "stop", "tool_choice", "parallel_tool_calls", "thinking", "thinking_tokens", "effort"}
)
"""Fields of `Sampling` that the turn itself honours; an engine lists the others that it honours in its `EngineInfo`."""
_NO_EFFECT: Final[dict[str, Any]] = {
    **dict.fromkeys(("top_k", "min_p", "frequency_penalty", "presence_penalty", "min_tokens", "top_logprobs"), 0),
    **dict.fromkeys(("top_p", "repeat_penalty"), 1),
    "logit_bias": {},
}
"""Values that ask for nothing: any engine honours them."""
# The sampling fields that an engine must honour, with a getter of their values and the values of a request without any:
_FIELDS: Final = tuple(name for name in Sampling.__struct_fields__ if name not in HONOURED_BY_TURNS)
_values: Final = attrgetter(*_FIELDS)
_DEFAULTS: Final = _values(Sampling())


def unhonoured_fields(sampling: Sampling, honoured: Collection[str]) -> list[str]:
    """Returns the fields that a request sets and that an engine ignores which honours only the fields `honoured`. All
    doors use this rule. An engine ignores every new field of `Sampling` until it lists it."""
    changed = compress(_FIELDS, map(ne, _values(sampling), _DEFAULTS))
    return [
        name
        for name in changed
        if name not in honoured
        and getattr(sampling, name) != _NO_EFFECT.get(name)
        and (name != "text" or has_format(sampling))
    ]


def unhonoured_thoughts(sampling: Sampling, thoughts: ThoughtMarks | None) -> list[str]:
    """Returns the fields about thoughts that a request sets and that a model with these thoughts (None: without any)
    cannot follow."""
    names = [] if thoughts is not None else ["thinking", "thinking_tokens"]
    names += [] if thoughts is not None and thoughts.efforts else ["effort"]
    return [name for name in names if getattr(sampling, name)]


def without_fields(sampling: Sampling, names: Iterable[str]) -> Sampling:
    """Returns a request's sampling with these fields reset to their defaults."""
    defaults = Sampling()
    return msgspec.structs.replace(sampling, **{name: getattr(defaults, name) for name in names})


def has_format(sampling: Sampling) -> bool:
    """Returns whether an answer must have a format: JSON, with or without a schema."""
    return sampling.text is not None and (sampling.text.format or {}).get("type", "text") != "text"


ATTENDED: Final = "attended"  # in a response's request: its client's leaving cancels it


def may_call_instead(sampling: Sampling) -> bool:
    """Returns whether a call may come in the place of an answer in the required format, if there are tools."""
    return has_format(sampling) and sampling.tool_choice in (None, "auto")


def is_attended(request: object) -> bool:
    """Returns whether a response with this request is only for a client that waits for it, so that the client's leaving
    cancels it."""
    return isinstance(request, dict) and request.get(ATTENDED) is True


def generates(request: object) -> bool:
    """Returns whether a response with this request is to be generated; if not, only its KV is prepared."""
    return not (isinstance(request, dict) and request.get(GENERATE) is False)


def continues(request: object) -> bool:
    """Returns whether a response with this request continues the text of the answer below which it stands."""
    return isinstance(request, dict) and bool(request.get(CONTINUES))


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True, tag="tokenizer"):
    """A model's tokenizer, as far as clients that prepare prompts by themselves need to know it."""

    vocabulary_size: int
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
    special_ids: dict[str, int] = {}  # ids of the two tokens above
    ends: frozenset[int] = frozenset()  # tokens that end an answer


class ThoughtMarks(msgspec.Struct, frozen=True):
    """The marks before and behind a model's thoughts in its text.

    `opened`: its chat template opens a thought at the end of each prompt, so that an answer begins inside one. `none`:
    the text at the end of a prompt whose answer is to have no thoughts. `end`: the text with which the server ends a
    thought, if it is not the mark alone. `channels`: thoughts, texts and calls are messages with headers
    (`sessions.turn.channels`). `apart`: the chat template takes thoughts in a field of their own, not in the text.
    `efforts`: the template knows degrees of effort. `asked`: the model has thoughts only if the template is given a
    hint; then `opened` and `none` are about prompts with the hint, and others need no text to keep thoughts away.
    """

    open: str
    close: str
    opened: bool = False
    none: str = ""
    end: str = ""
    channels: bool = False
    apart: bool = False
    efforts: bool = False
    asked: bool = False

    def template_hint(self, sampling: Sampling) -> str:
        """Returns the chat template's hint about thoughts: "" for none, "on" if the answer is to have thoughts, else
        the degree of effort."""
        if sampling.thinking is False:
            return ""
        if self.efforts and sampling.effort is not None:
            return sampling.effort
        return "on" if self.asked and sampling.thinking else ""

    def opens(self, sampling: Sampling) -> bool:
        """Returns whether the answer to a request begins inside a thought that the template has opened."""
        return self.opened and (not self.asked or self.template_hint(sampling) != "")

    @property
    def closing(self) -> str:
        """The text with which the server ends a thought that the model has not ended."""
        return self.end or f"\n{self.close}\n\n"


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an engine, on which placement, KV and the checks of what it can do depend."""

    model: str  # the public name
    build: str  # engine and version; KV never crosses builds
    model_fingerprint: str  # of the weights, and of what else decides what they compute
    context_window: int  # tokens that prompt and answer may take together, per session
    slots: int  # answers that run at the same time
    sampling: frozenset[str]  # fields of Sampling that it honours, besides HONOURED_BY_TURNS
    # `none`: no tool calls. Else they are text, in `call_format`; `hermes`: a grammar of ours holds the model to a call
    # or format that is asked for; `engine`: the engine does.
    tool_format: Literal["none", "hermes", "engine"] = "none"
    call_format: str = "hermes"  # key of `sessions.turn.call_formats.FORMATS`: how calls are written in text
    continues_formats: bool = False  # an answer in a fixed format goes on from its first tokens as fast as others
    kv_block_tokens: int = 1  # KV is reused in whole blocks of so many tokens
    aliases: tuple[str, ...] = ()  # other names that clients may request it by
    thoughts: ThoughtMarks | None = None  # None: its thoughts, if any, are not told apart
    foldings: tuple[str, ...] = ()  # what its chat template refuses, and how that is written instead: docs/models.md
    images: bool = False  # whether the model sees images
    smaller: EngineInfo | None = None  # a smaller model beside it, for brownout: same tokens, no smaller window

    @property
    def takes_tools(self) -> bool:
        return self.tool_format != "none"

    @property
    def smaller_model(self) -> str:
        return self.smaller.model if self.smaller is not None else ""


def thinks(sampling: Sampling, request: Json) -> bool:
    """Returns whether an answer may have thoughts. It has none if the request says so, if it continues an answer or
    completes a text, or if its first token must follow a format or begin a call."""
    return sampling.thinking is not False and is_free(sampling, request) and not continues(request)


def is_free(sampling: Sampling, request: Json) -> bool:
    """Returns whether the model chooses the form of its answer. It does not if the request is a raw text to complete,
    requires a format, or requires a call."""
    raw = isinstance(request, dict) and bool(request.get(RAW_PROMPT))
    forced = sampling.tool_choice not in (None, "auto", "none")
    return not (raw or has_format(sampling) or forced)


def unsupported_scores(model: str) -> BadInput:
    """Returns the error for log probabilities of a prompt if the engine cannot compute them."""
    message = f"The model {model!r} has no log probabilities of prompts here: leave out 'echo' or 'logprobs'."
    return BadInput("unsupported_parameter", message, param="echo")


def unsupported_field(model: str, name: str, *, param: str = "") -> BadInput:
    """Returns the error for a field of `Sampling` that a model's engine does not honour. It is the same at every
    door."""
    what = {"text": "has no structured output", "logprobs": "gives no logprobs"}.get(name, f"does not know {name!r}")
    return BadInput("unsupported_parameter", f"The model {model!r} {what}.", param=param or name)


def unseen_image(param: str) -> BadInput:
    """Returns the error for an image that the model cannot see. It is the same at every door."""
    what = "The model sees no images: send text alone, or use a model whose `input_modalities` name `image`."
    return BadInput("unsupported_parameter", what, param=param)


def unsupported_tools(model: str) -> BadInput:
    """Returns the error for tools that a model cannot call. It is the same at every door."""
    return BadInput("unsupported_parameter", f"The model {model!r} cannot call tools.", param="tools")


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one run of an engine. `prompt` is the whole prompt; the engine finds out for how much of it its KV
    is there."""

    key: SessionKey
    response_id: ResponseId
    generation: int  # 1 for the first run of a response; recovery counts on
    prompt: Tokens
    sampling: Sampling
    seed: int
    max_tokens: int  # at least 1; what is left for this response
    emitted: Tokens = ()  # the end of `prompt` that this response has emitted already (for penalties, grammar)
    priority: int = 0  # smaller is served earlier
    weight: float = 1.0  # of the tenant's share among tenants of the same priority
    shared_prefix: int = 0  # leading tokens of `prompt` that other sessions of the tenant may share
    model: str = ""  # the smaller model's name, if that one is to write; "": the engine's own model
    images: tuple[InputImage, ...] = ()  # of the conversation; `prompt` names those that it shows (`images.ImageName`)
    cache_scope: bytes = b""  # KV of sessions with the same scope may be reused; b"": only this session's own


def cache_scope_of(principal: Principal, request: Mapping[str, Json] | None) -> bytes:
    """Returns the scope in which a response may reuse KV of other sessions: those of the same caller (tenant, key,
    user), and of the same end user if the caller names one; b"" for none.

    Only responses to OpenAI's clients, whose `request` is kept, have a scope, because such a client may have what it
    sends again in several sessions. The server has authenticated the caller; the end user that a request names can only
    choose among the caller's own sessions.
    """
    if request is None:
        return b""
    end_user = request.get("user") or request.get("safety_identifier")
    caller: list[Any] = [principal.tenant, principal.key_id, principal.user, end_user]
    return hashlib.blake2b(msgspec.msgpack.encode(caller), digest_size=16, person=b"cache_scope").digest()


def drawn_seed(response_id: ResponseId) -> int:
    """Returns the seed of a response whose request names none."""
    return int.from_bytes(hashlib.blake2b(response_id.encode(), digest_size=4).digest(), "big")


def continuation_seed(seed: int, response_id: ResponseId, emitted: int) -> int:
    """Returns the seed of a run that continues after `emitted` tokens. Every replica computes the same (DESIGN.md
    §4)."""
    if emitted == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}\0{response_id}\0{emitted}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Newly decoded tokens with their text. Text never ends inside a character: incomplete bytes wait for the token
    that completes them, so `text` may be empty and a later one may be that of several tokens. `cached_tokens` of the
    prompt were not computed (as in `Finish`); each chunk has the number, because a run may be cancelled after each. It
    is 0 from an engine that learns the number only at the end."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[Json, ...] = ()
    cached_tokens: int = 0


EndReason = Literal["stop", "length", "content_filter"]  # the last: whoever runs the model filtered its answer


class Finish(msgspec.Struct, frozen=True):
    """The last value that a generation yields.

    `prompt_tokens` = len(prompt); `cached_tokens` of them were not computed because their KV was there.
    """

    reason: EndReason
    prompt_tokens: int
    cached_tokens: int


class TokenScore(NamedTuple):
    """A model's prediction behind one token of a prompt: the log probability of the token that follows (None behind the
    last one), and the most probable tokens as pairs of id and log probability."""

    logprob: float | None
    top: tuple[tuple[int, float], ...]


class KVPlace(msgspec.Struct, frozen=True):
    """The tier that holds a session's KV, and how many leading tokens of its ledger that KV covers."""

    tier: Literal["none", "device", "host", "disk", "redis"]
    tokens: int


class KVExport(NamedTuple):
    """A session's KV on its way to another replica. The caller closes the chunks."""

    ledger: array[int]  # the token ids that it covers
    chunks: AsyncGenerator[bytes, None]


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    slots: int
    running: int
    waiting: int
    counters: dict[str, float]  # monotonic: prefilled_tokens, reused_tokens, decoded_tokens, spills, restores, ...
    gauges: dict[str, float] = {}  # per KV tier: bytes held and allowed, snapshots, measured latency and bandwidth
    smaller: EngineStats | None = None  # of the smaller model; not included above
    away: str | None = None  # why turns wait or are refused at present; None: they are not
