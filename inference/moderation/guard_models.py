"""Where a guard model is: behind an OpenAI-compatible URL, or in a GGUF that llama.cpp serves inside this process.

Both say of a text how likely the policy's second word (`unsafe`) is, of the two, as the beginning of the answer. The
endpoint's probabilities are of its twenty likeliest tokens; without any, what it says counts as 0 or 1. From the file
exactly the two words' first tokens are asked for. `inference.moderation.guard` bounds and times all this.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from inference.llama.http import HttpClient
from inference.moderation.policy import TEXT, BadPolicy, GuardConfig
from inference.moderation.worker_client import NotJudged
from sessions.model.errors import SessileError
from sessions.model.types import Json

LIKELY: Final = 0.05  # less for the two words together is rubbish
KIND_TOKENS: Final = 16
BIAS: Final = 100.0  # lifts the two words above all others and leaves their odds as they are

T = TypeVar("T", bound=msgspec.Struct)


class GuardVerdict(NamedTuple):
    score: float
    kind: str = ""  # of the policy's mapping


class GuardModel(Protocol):
    version: str

    async def start(self) -> None:
        """Raises BadPolicy."""
        ...

    async def close(self) -> None: ...

    async def judge(self, text: str) -> GuardVerdict:
        """Raises NotJudged, SessileError."""
        ...


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
    """`url` is what clients call the base URL, with `/v1`."""

    def __init__(self, guard: GuardConfig) -> None:
        self._guard = guard
        self.version = f"guard/{guard.model}"
        parts = urlsplit(guard.url)
        assert parts.hostname is not None, "the policy was checked"
        secure = parts.scheme == "https"
        self._path = f"{parts.path.rstrip('/')}/chat/completions"
        self._at = (parts.hostname, parts.port or (443 if secure else 80))
        self._tls = ssl.create_default_context() if secure else None
        self._http: HttpClient | None = None

    async def start(self) -> None:
        headers = {}
        if self._guard.key_file:
            try:
                key = (await asyncio.to_thread(Path(self._guard.key_file).read_text)).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise BadPolicy(f"key_file {self._guard.key_file!r}: {error}") from error
            if not key.isascii() or not key.isprintable() or not key:
                raise BadPolicy(f"key_file {self._guard.key_file!r}: there is no key in it")
            headers["authorization"] = f"Bearer {key}"
        self._http = HttpClient(*self._at, tls=self._tls, headers=headers)

    async def close(self) -> None:
        self._http = None

    async def judge(self, text: str) -> GuardVerdict:
        guard = self._guard
        if self._http is None:
            raise NotJudged("the guard is closed")
        body: dict[str, Json] = {
            "model": guard.model,
            "messages": [{"role": "user", "content": guard.template.replace(TEXT, text)}],
            "temperature": 0,
            "max_tokens": KIND_TOKENS if guard.kinds else 4,
        }
        if guard.logprobs:
            body |= {"logprobs": True, "top_logprobs": 20}
        status, answer = await self._http.call("POST", self._path, msgspec.json.encode(body))
        if status != 200:
            raise NotJudged(f"the guard answers {status}")
        try:
            choice = _answers.decode(answer).choices[0]
        except (msgspec.DecodeError, IndexError, UnicodeDecodeError) as error:
            raise NotJudged("the guard's answer is none") from error
        said = (choice.message.content or "").strip()
        tokens = choice.logprobs.content if choice.logprobs is not None else None
        score = _by_word(guard, said) if not tokens else _by_tokens(guard, tokens)
        return GuardVerdict(score, kind_of(guard, said) if score >= 0.5 else "")


def _by_word(guard: GuardConfig, said: str) -> float:
    said = said.lower()
    for word, score in ((guard.unsafe, 1.0), (guard.safe, 0.0)):
        if said.startswith(word):
            return score
    raise NotJudged("the guard says neither of its two words")


def _by_tokens(guard: GuardConfig, tokens: Sequence[_Token]) -> float:
    """How likely the second word is, of the two, where the answer begins."""
    first = next((each for each in tokens if each.token.strip()), None)
    if first is None:
        raise NotJudged("the guard says nothing")
    odds = {guard.unsafe: 0.0, guard.safe: 0.0}
    for each in first.top_logprobs or [first]:
        begun = each.token.strip().lower()
        for word in odds:
            if begun and (word.startswith(begun) or begun.startswith(word)):
                odds[word] += math.exp(min(each.logprob, 0.0))
    return _share(odds[guard.unsafe], odds[guard.safe])


def _share(unsafe: float, safe: float) -> float:
    if not unsafe + safe >= LIKELY:  # not a number is not likely either
        raise NotJudged("the guard says neither of its two words")
    return unsafe / (unsafe + safe)


def kind_of(guard: GuardConfig, said: str) -> str:
    """The first of the mapped words that stands in an answer; "" for none."""
    words = said.lower().replace(",", " ").split()
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


MARK: Final = "\x02text\x02"  # stands in the rendered template where the text goes


class LocalGuard:
    """A GGUF behind llama.cpp. The text's tokens are its own: it cannot write the template's special ones."""

    def __init__(self, guard: GuardConfig) -> None:
        self._guard = guard
        self.version = f"guard/{Path(guard.model_path).stem}"
        self._server: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._http: HttpClient | None = None
        self._before: list[int] = []
        self._behind: list[int] = []
        self._words = (0, 0)  # first tokens of the unsafe word and of the safe one

    async def start(self) -> None:
        from inference.llama import LlamaOptions  # llama.cpp is loaded where a policy asks for it
        from inference.llama.server import LlamaServer

        guard = self._guard
        path = Path(guard.model_path)
        if not await asyncio.to_thread(path.is_file):
            raise BadPolicy(f"model_path {guard.model_path!r}: there is no such file")
        self._folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="sessile-guard-")
        options = LlamaOptions(model_path=path, slots=guard.at_once, threads=guard.threads)
        self._server = LlamaServer(options, guard.context, Path(self._folder.name))
        try:
            self._http = await self._server.start()
            shown = await self._call(
                "/apply-template",
                {"messages": [{"role": "user", "content": guard.template.replace(TEXT, MARK)}]},
                _Prompt,
            )
            before, mark, behind = shown.prompt.partition(MARK)
            if not mark:
                raise BadPolicy(f"model_path {guard.model_path!r}: its chat template loses the text")
            self._before = await self._tokens(before, special=True, first=True)
            self._behind = await self._tokens(behind, special=True)
            unsafe, safe = [(await self._tokens(word, special=False))[:1] for word in (guard.unsafe, guard.safe)]
            if not unsafe or not safe or unsafe == safe:
                raise BadPolicy(f"{guard.unsafe!r}, {guard.safe!r}: this model begins both words with the same token")
            self._words = (unsafe[0], safe[0])
        except BaseException as error:
            await self.close()
            if isinstance(error, NotJudged | SessileError) and not isinstance(error, BadPolicy):
                raise BadPolicy(f"model_path {guard.model_path!r}: {error}") from error
            raise

    async def close(self) -> None:
        self._http = None
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self._folder is not None:
            await asyncio.to_thread(self._folder.cleanup)
            self._folder = None

    async def judge(self, text: str) -> GuardVerdict:
        guard = self._guard
        prompt = [*self._before, *(await self._tokens(text, special=False)), *self._behind]
        drawn = await self._call(
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
            _Completion,
        )
        odds = {each.id: each.prob for place in drawn.completion_probabilities[:1] for each in place.top_probs}
        unsafe, safe = (odds.get(word, 0.0) for word in self._words)
        score = _share(unsafe, safe)
        if score < 0.5 or not guard.kinds:
            return GuardVerdict(score)
        told = await self._call(
            "/completion",
            {
                "prompt": [*prompt, *(await self._tokens(guard.unsafe, special=False))],
                "n_predict": KIND_TOKENS,
                "temperature": 0.0,
                "cache_prompt": True,
            },
            _Completion,
        )
        return GuardVerdict(score, kind_of(guard, told.content))

    async def _tokens(self, text: str, *, special: bool, first: bool = False) -> list[int]:
        asked = {"content": text, "add_special": first, "parse_special": special}
        return (await self._call("/tokenize", asked, _Tokens)).tokens

    async def _call(self, path: str, body: dict[str, Json], answer: type[T]) -> T:
        if self._http is None:
            raise NotJudged("the guard is closed")
        status, said = await self._http.call("POST", path, msgspec.json.encode(body))
        if status != 200:
            raise NotJudged(f"the guard answers {status}")
        try:
            return msgspec.json.decode(said, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotJudged("the guard's answer is none") from error
