"""Stand-ins for the servers of vLLM and SGLang, which take and name token ids. Each speaks as the server's source does.

All of them continue one story: the next token is that of `STORY` behind whatever beginning of it the prompt ends with.
So an answer that one server began goes on at another, from any id. A character of the story takes several tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from inference.remote.engine import RemoteEngine
from inference.remote.options import RemoteOptions
from inference.tokens import Utf8Stream
from inference.vllm.model_folder import read_vllm_model
from inference.vllm.tokenizer import VllmTokenizer, folder_template, read_tokenizer
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.tiny_models import write_tiny_folder

STORY = "Where does the river go? 橋 🌉 and Fluß. It is the river, and it does go."
OTHER_END = "<|eot_id|>"  # an end of the model that only servers know
WINDOW = 400
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def write_folder(folder: Path, kind: str = "qwen2") -> Path:
    """Writes a model's folder whose tokenizer has a token for each byte and for a few words."""
    write_tiny_folder(folder, kind, FAMILIES["chatml"], SPECIALS)
    return folder


class TokenServer:
    """A server that answers with the story. Attributes that a test sets say what goes wrong."""

    owned_by = ""

    def __init__(self, folder: Path) -> None:
        model = read_vllm_model(folder, weights_needed=False)
        self.tokenizer: VllmTokenizer = read_tokenizer(model, folder_template(None, model))
        self.end = self.tokenizer.answer_end[0]  # of the story
        other_end = self.tokenizer.token_id(OTHER_END)
        assert other_end is not None
        self.ends = frozenset({self.end, other_end})
        self.story = self.tokenizer._encode(STORY, special=False)
        self.url = ""
        self.key = ""
        self.model = "small"  # its name
        self.event_tokens = 1  # ids of an event
        self.cut_after: int | None = None  # ids; then the connection ends
        self.junk_after: int | None = None  # ids; then what is no event
        self.busy = False
        self.refusal = ""  # a sentence
        self.tokenize_status = 200
        self.bodies: list[dict[str, Any]] = []
        self.hung_up = asyncio.Event()  # somebody hung up in the middle of an answer
        self._prompts: dict[str, list[tuple[int, ...]]] = {}  # by salt

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path, length = head.split(" ", 2)[1], int(head.lower().partition("content-length:")[2].split("\r\n", 1)[0])
        body = msgspec.json.decode(await reader.readexactly(length) or b"{}")
        try:
            if self.key and f"bearer {self.key}" not in head.lower():
                writer.write(_answer(401, {"error": f"no {self.key}"}))
            elif path == "/v1/models":
                model = {"id": self.model, "owned_by": self.owned_by, "max_model_len": WINDOW}
                writer.write(_answer(200, {"data": [model]}))
            elif path == "/tokenize":
                tokens = await self.tokenizer.text(body["prompt"])
                refused = {"error": {"message": f"No more of {self.key}."}}
                ok = self.tokenize_status == 200
                writer.write(_answer(self.tokenize_status, {"tokens": tokens} if ok else refused))
            elif path == "/health":
                writer.write(_answer(200, {}))
            elif path == self._path:
                self.bodies.append(body)
                await self._generate(body, reader, writer)
            else:
                writer.write(_answer(404, {"error": {"message": "Not Found"}}))
            await writer.drain()
        except ConnectionError:
            self.hung_up.set()
        finally:
            writer.close()

    # -- what differs between the two ------------------------------------------------------------------

    _path = ""

    async def _generate(
        self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None: ...

    def event(self, answer: list[int], new: int, finish: str | None, matched: int | None) -> bytes:
        """Returns the event with the last `new` ids of `answer`."""
        raise NotImplementedError

    # -- the story -------------------------------------------------------------------------------------

    def cached(self, salt: str, prompt: tuple[int, ...]) -> int:
        """Returns how many leading ids of a prompt earlier ones of the same salt began with."""
        earlier = self._prompts.setdefault(salt, [])
        most = max((_shared(prompt, each) for each in earlier), default=0)
        earlier.append(prompt)
        return min(most, len(prompt) - 1)

    def next_token(self, ids: list[int]) -> int:
        """Returns the id that follows `ids`: behind the whole story its end, and behind that its beginning."""
        whole = [*self.story, self.end]
        lengths = (length for length in range(len(whole), 0, -1) if ids[-length:] == whole[:length])
        return whole[next(lengths, 0) % len(whole)]

    async def stream_story(
        self,
        prompt: list[int],
        most: int,
        stops: frozenset[int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Streams the story. `stops` end it."""
        answer: list[int] = []
        new = 0
        gone = asyncio.ensure_future(_hung_up(reader))
        finish: str | None = None
        while not finish and len(answer) != self.cut_after:
            if len(answer) == self.junk_after:
                writer.write(b"data: {\n\n")
                break
            answer.append(self.next_token([*prompt, *answer]))
            new += 1
            matched = answer[-1] if answer[-1] in stops else None
            finish = "stop" if matched is not None else "length" if len(answer) == most else None
            if new == self.event_tokens or finish:
                writer.write(self.event(answer, new, finish, matched))
                new = 0
            await writer.drain()
            await asyncio.sleep(0)
            if gone.done():
                raise ConnectionError
        gone.cancel()


class VllmServer(TokenServer):
    owned_by = "vllm"
    _path = "/v1/completions"

    async def _generate(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        prompt = body["prompt"]
        if self.busy:
            writer.write(_answer(503, {"error": {"message": "busy"}}))
            return
        if self.refusal or len(prompt) + body["max_tokens"] > WINDOW:
            message = self.refusal or f"This model's maximum context length is {WINDOW} tokens."
            writer.write(_answer(400, {"error": {"message": message}}))
            return
        writer.write(STREAM)
        self._text = Utf8Stream(self.tokenizer.pieces(prompt[-8:]))
        ends = frozenset[int]() if body["ignore_eos"] else self.ends
        await self.stream_story(prompt, body["max_tokens"], ends.union(body["stop_token_ids"]), reader, writer)
        if self.cut_after is None and self.junk_after is None:
            cached = self.cached(body["cache_salt"], tuple(prompt))
            usage = {"prompt_tokens_details": {"cached_tokens": cached}}
            writer.write(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n")

    def event(self, answer: list[int], new: int, finish: str | None, matched: int | None) -> bytes:
        ids = answer[-new:]
        shown = ids[:-1] if matched is not None else ids
        text = "".join(map(self._text.feed, self.tokenizer.pieces(shown)))
        stop = None if matched == self.tokenizer.answer_end[0] else matched
        choice = {"text": text, "token_ids": ids, "finish_reason": finish, "stop_reason": stop}
        return b"data: " + msgspec.json.encode({"choices": [choice]}) + b"\n\n"


class SglangServer(TokenServer):
    """`incremental`: started with `--incremental-streaming-output`. `prompt_ids`: how many of the prompt stand before
    the answer's, as in some releases. `lost_event`: the number of an event that is never sent, as in others."""

    owned_by = "sglang"
    _path = "/generate"

    def __init__(self, folder: Path, *, incremental: bool = False, prompt_ids: int = 0) -> None:
        super().__init__(folder)
        self._incremental = incremental
        self._prompt_ids = prompt_ids
        self.lost_event: int | None = None
        self.names_ids = True
        self.refusal_status = 400
        self.abort: tuple[int, dict[str, Any]] | None = None  # behind so many ids
        self._cached = 0
        self._leading: list[int] = []

    async def _generate(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        prompt, sampling = body["input_ids"], body["sampling_params"]
        writer.write(STREAM)
        if self.busy:
            writer.write(_abort(0, {"message": "The request queue is full.", "status_code": 503}))
            return
        if self.refusal or len(prompt) + sampling["max_new_tokens"] >= WINDOW:
            message = self.refusal or f"The input is longer than the model's context length ({WINDOW} tokens)."
            error = {"message": message, "code": self.refusal_status}
            writer.write(b"data: " + msgspec.json.encode({"error": error}) + b"\n\ndata: [DONE]\n\n")
            return
        self._cached = self.cached(body["extra_key"], tuple(prompt))
        self._leading = prompt[-self._prompt_ids :] if self._prompt_ids else []
        stops = frozenset[int]() if sampling["ignore_eos"] else self.ends.union(sampling["stop_token_ids"])
        await self.stream_story(prompt, sampling["max_new_tokens"], stops, reader, writer)
        if self.cut_after is None and self.junk_after is None:
            writer.write(b"data: [DONE]\n\n")

    def event(self, answer: list[int], new: int, finish: str | None, matched: int | None) -> bytes:
        if self.lost_event is not None and len(answer) == self.lost_event:
            return b""
        if self.abort is not None and len(answer) > self.abort[0]:
            return _abort(len(answer), self.abort[1])
        ids = answer if not self._incremental else answer[-new:]
        ids = [*self._leading, *ids] if len(ids) == len(answer) else ids
        reasons = {
            None: None,
            "stop": {"type": "stop", "matched": matched},
            "length": {"type": "length", "length": len(answer)},
        }
        meta = {"id": "r", "finish_reason": reasons[finish], "completion_tokens": len(answer)}
        event = {
            "text": "(another's)",
            "output_ids": ids if self.names_ids else None,
            "meta_info": {**meta, "cached_tokens": self._cached},
        }
        return b"data: " + msgspec.json.encode(event) + b"\n\n"


async def _hung_up(reader: asyncio.StreamReader) -> None:
    """Returns when the client closes the connection."""
    with contextlib.suppress(ConnectionError):
        await reader.read()


def _abort(count: int, reason: dict[str, Any]) -> bytes:
    meta = {"id": "r", "finish_reason": {"type": "abort", **reason}, "completion_tokens": count}
    return b"data: " + msgspec.json.encode({"text": "", "output_ids": [], "meta_info": meta}) + b"\n\n"


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def _answer(status: int, body: object) -> bytes:
    data = msgspec.json.encode(body)
    return b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data)


@asynccontextmanager
async def engine_before(folder: Path, *servers: TokenServer, **options: Any) -> AsyncIterator[RemoteEngine]:
    """Yields a started engine in front of servers that run already."""
    urls = tuple(server.url for server in servers)
    engine = RemoteEngine(RemoteOptions(urls=urls, tokenizer=folder, **options))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
