"""Calls a guard model: behind an OpenAI-compatible URL, or in a GGUF that llama.cpp serves inside this process.

Both return for a text how likely the policy's second word (`unsafe`) is, of the two, as the beginning of the answer.
The endpoint's probabilities are of its twenty likeliest tokens; without any, its answer counts as 0 or 1. From the file
exactly the two words' first tokens are sampled. `inference.moderation.guard` bounds and times all this.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from inference.http_client import HttpClient
from inference.moderation.policy import TEXT, BadPolicy, GuardConfig
from inference.moderation.worker_client import NotJudged
from sessions.model.errors import SessileError
from sessions.model.types import Json

LIKELY: Final = 0.05  # less for the two words together is rubbish
KIND_TOKENS: Final = 16
_MALFORMED: Final = "the guard's answer is malformed"
BIAS: Final = 100.0  # lifts the two words above all others and leaves their odds as they are

T = TypeVar("T", bound=msgspec.Struct)


class GuardVerdict(NamedTuple):
    score: float
    kind: str = ""  # the category, by the policy's mapping; "" for none


class GuardModel(Protocol):
    version: str

    async def judge(self, text: str) -> GuardVerdict:
        """Judges a text. Raises NotJudged, SessileError."""
        ...

    async def judge_image(self, image_url: str) -> GuardVerdict:
        """Judges an image, which is a data URL. Raises NotJudged, SessileError; NotJudged always if the model sees no
        images."""
        ...

    async def close(self) -> None: ...


async def open_guard_model(guard: GuardConfig) -> GuardModel:
    """Connects to the guard's endpoint, or loads its file. Raises BadPolicy."""
    return await (RemoteGuard.open(guard) if guard.url else LocalGuard.open(guard))


# -- an endpoint --------------------------------------------------------------------------------------------------


class _Message(msgspec.Struct):
    content: str | None = None


class _Top(msgspec.Struct):
    token: str
    logprob: float


class _Token(_Top):
    top_logprobs: list[_Top] = []


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_answers = msgspec.json.Decoder(_Answer)


class RemoteGuard:
    """Judges texts by an OpenAI-compatible endpoint; `url` is its base URL, with `/v1`."""

    def __init__(self, guard: GuardConfig, key: str = "") -> None:
        self.version = f"guard/{guard.model}"
        self._guard = guard
        parts = urlsplit(guard.url)
        assert parts.hostname is not None, "the policy was checked"
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        headers = {"authorization": f"Bearer {key}"} if key else None
        self._path = f"{parts.path.rstrip('/')}/chat/completions"
        self._http = HttpClient(parts.hostname, parts.port or (443 if tls else 80), tls=tls, headers=headers)

    @classmethod
    async def open(cls, guard: GuardConfig) -> RemoteGuard:
        """Reads the endpoint's key. Raises BadPolicy."""
        if not guard.key_file:
            return cls(guard)
        try:
            key = (await asyncio.to_thread(Path(guard.key_file).read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadPolicy(f"key_file {guard.key_file!r}: {error}") from error
        if not key.isascii() or not key.isprintable() or not key:
            raise BadPolicy(f"key_file {guard.key_file!r}: there is no key in it")
        return cls(guard, key)

    async def close(self) -> None:
        """Does nothing: a connection lasts only for a request."""

    async def judge(self, text: str) -> GuardVerdict:
        return await self._judge(self._guard.template.replace(TEXT, text))

    async def judge_image(self, image_url: str) -> GuardVerdict:
        template: Json = {"type": "text", "text": self._guard.template.replace(TEXT, "")}
        image: Json = {"type": "image_url", "image_url": {"url": image_url}}
        return await self._judge([template, image])

    async def _judge(self, prompt: Json) -> GuardVerdict:
        """Judges what `prompt`, a user message's content, holds."""
        guard = self._guard
        body: dict[str, Json] = {
            "model": guard.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": KIND_TOKENS if guard.kinds else 4,
        }
        if guard.logprobs:
            body |= {"logprobs": True, "top_logprobs": 20}
        try:
            choice = (await _call(self._http, self._path, body, _answers)).choices[0]
        except IndexError as error:
            raise NotJudged(_MALFORMED) from error
        content = (choice.message.content or "").strip()
        tokens = choice.logprobs.content if choice.logprobs is not None else None
        score = _score_by_word(guard, content) if not tokens else _score_by_tokens(guard, tokens)
        return GuardVerdict(score, kind_of(guard, content) if score >= 0.5 else "")


async def _call(http: HttpClient, path: str, body: dict[str, Json], decoder: msgspec.json.Decoder[T]) -> T:
    """Posts a request. Raises NotJudged for an answer that is an error or malformed."""
    status, answer = await http.call("POST", path, msgspec.json.encode(body))
    if status != 200:
        raise NotJudged(f"the guard answers {status}")
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJudged(_MALFORMED) from error


def _score_by_word(guard: GuardConfig, content: str) -> float:
    content = content.lower()
    for word, score in ((guard.unsafe, 1.0), (guard.safe, 0.0)):
        if content.startswith(word):
            return score
    raise NotJudged("the guard answers neither of its two words")


def _score_by_tokens(guard: GuardConfig, tokens: Sequence[_Token]) -> float:
    """Returns how likely the unsafe word is, against the safe one, as the first token of the answer."""
    first = next((token for token in tokens if token.token.strip()), None)
    if first is None:
        raise NotJudged("the guard answers nothing")
    odds = {guard.unsafe: 0.0, guard.safe: 0.0}
    for each in first.top_logprobs or [first]:
        begun = each.token.strip().lower()
        for word in odds:
            if begun and (word.startswith(begun) or begun.startswith(word)):
                odds[word] += math.exp(min(each.logprob, 0.0))
    return _share(odds[guard.unsafe], odds[guard.safe])


def _share(unsafe: float, safe: float) -> float:
    if not unsafe + safe >= LIKELY:  # not a number is not likely either
        raise NotJudged("the guard answers neither of its two words")
    return unsafe / (unsafe + safe)


def kind_of(guard: GuardConfig, content: str) -> str:
    """Returns the kind of the first mapped word that an answer holds; "" for none."""
    words = content.lower().replace(",", " ").split()
    return next((kind for name, kind in guard.kinds.items() if name.lower() in words), "")


# -- a file -------------------------------------------------------------------------------------------------------


class _Probability(msgspec.Struct):
    id: int
    prob: float


class _Drawn(msgspec.Struct):
    top_probs: list[_Probability] = []


class _Completion(msgspec.Struct):
    content: str = ""
    completion_probabilities: list[_Drawn] = []


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Prompt(msgspec.Struct):
    prompt: str


_completions = msgspec.json.Decoder(_Completion)
_tokenized = msgspec.json.Decoder(_Tokens)
_prompts = msgspec.json.Decoder(_Prompt)

MARK: Final = "\x02text\x02"  # stands in the rendered template where the text goes


class LocalGuard:
    """Judges texts by a GGUF in llama.cpp. A text is tokenised so that it cannot contain the template's special
    tokens."""

    def __init__(
        self,
        guard: GuardConfig,
        http: HttpClient,
        prompt: tuple[list[int], list[int]],
        words: tuple[int, int],
        resources: contextlib.AsyncExitStack,
    ) -> None:
        """`prompt`: the tokens before a text and behind it; `words`: the first tokens of the unsafe word and of the
        safe one; `resources`: the server, and what ends with it."""
        self.version = f"guard/{Path(guard.model_path).stem}"
        self._guard = guard
        self._http = http
        self._before, self._behind = prompt
        self._words = words
        self._resources = resources

    @classmethod
    async def open(cls, guard: GuardConfig) -> LocalGuard:
        """Loads the file. Raises BadPolicy."""
        from inference.llama import LlamaOptions  # llama.cpp is loaded only where a policy needs it
        from inference.llama.server import LlamaServer

        path = Path(guard.model_path)
        if not await asyncio.to_thread(path.is_file):
            raise BadPolicy(f"model_path {guard.model_path!r}: there is no such file")
        async with contextlib.AsyncExitStack() as stack:
            folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="sessile-guard-")
            stack.push_async_callback(asyncio.to_thread, folder.cleanup)
            options = LlamaOptions(model_path=path, slots=guard.at_once, threads=guard.threads)
            server = LlamaServer(options, guard.context, Path(folder.name))
            stack.push_async_callback(server.stop)
            try:
                http = await server.start()
                prompt, words = await _prompt_around(http, guard), await _first_tokens(http, guard)
            except BadPolicy:
                raise
            except (NotJudged, SessileError) as error:
                raise BadPolicy(f"model_path {guard.model_path!r}: {error}") from error
            return cls(guard, http, prompt, words, stack.pop_all())

    async def close(self) -> None:
        await self._resources.aclose()

    async def judge_image(self, image_url: str) -> GuardVerdict:
        raise NotJudged("the guard sees no images")

    async def judge(self, text: str) -> GuardVerdict:
        guard = self._guard
        prompt = [*self._before, *(await _tokenize(self._http, text)), *self._behind]
        completion = await _call(
            self._http,
            "/completion",
            {
                "prompt": prompt,
                "n_predict": 1,
                "n_probs": 2,
                "post_sampling_probs": True,
                "samplers": ["temperature"],
                "temperature": 1.0,
                "logit_bias": [[word, BIAS] for word in self._words],
                "cache_prompt": True,
            },
            _completions,
        )
        odds = {each.id: each.prob for place in completion.completion_probabilities[:1] for each in place.top_probs}
        unsafe, safe = (odds.get(word, 0.0) for word in self._words)
        score = _share(unsafe, safe)
        if score < 0.5 or not guard.kinds:
            return GuardVerdict(score)
        completion = await _call(
            self._http,
            "/completion",
            {
                "prompt": [*prompt, *(await _tokenize(self._http, guard.unsafe))],
                "n_predict": KIND_TOKENS,
                "temperature": 0.0,
                "cache_prompt": True,
            },
            _completions,
        )
        return GuardVerdict(score, kind_of(guard, completion.content))


async def _prompt_around(http: HttpClient, guard: GuardConfig) -> tuple[list[int], list[int]]:
    """Returns the tokens before and behind a judged text: the model's chat template around the policy's template."""
    message: Json = {"role": "user", "content": guard.template.replace(TEXT, MARK)}
    rendered = (await _call(http, "/apply-template", {"messages": [message]}, _prompts)).prompt
    before, mark, behind = rendered.partition(MARK)
    if not mark:
        raise BadPolicy(f"model_path {guard.model_path!r}: its chat template loses the text")
    return await _tokenize(http, before, special=True, first=True), await _tokenize(http, behind, special=True)


async def _first_tokens(http: HttpClient, guard: GuardConfig) -> tuple[int, int]:
    """Returns the first token of the unsafe word and that of the safe word."""
    unsafe, safe = [(await _tokenize(http, word))[:1] for word in (guard.unsafe, guard.safe)]
    if not unsafe or not safe or unsafe == safe:
        raise BadPolicy(f"{guard.unsafe!r}, {guard.safe!r}: this model begins both words with the same token")
    return unsafe[0], safe[0]


async def _tokenize(http: HttpClient, text: str, *, special: bool = False, first: bool = False) -> list[int]:
    body: dict[str, Json] = {"content": text, "add_special": first, "parse_special": special}
    return (await _call(http, "/tokenize", body, _tokenized)).tokens
