"""A model whose tags around a call are special tokens: they are text all the same, and nobody else can write them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from inference.vllm.model_folder import read_vllm_model
from inference.vllm.tokenizer import VllmTokenizer, folder_template
from sessions.model.types import Sampling, UnixMs
from sessions.ports import ChatMessage
from sessions.turn.channels import CHANNEL, MARKS
from sessions.turn.tool_call_parser import CLOSE, OPEN
from testbed.engine_client import ask, key, prompt_of
from tests.support.engines.chat_templates import FAMILIES
from tests.support.engines.vllm_world import MODEL, VllmWorld, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

UNUSED = (
    "<file_sep>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
)
# Special tokens that the small model has no use for, and how they are spelled instead.
TAGS = {"<repo_name>": OPEN, "<reponame>": CLOSE, **dict(zip(UNUSED, MARKS, strict=True))}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The small model, with some of its special tokens spelled as marks of calls and channels."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in MODEL.iterdir():
        if file.name != "tokenizer.json":
            (folder / file.name).symlink_to(file)
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = TAGS.get(token["content"], token["content"])
    tokenizer["model"]["vocab"] = {TAGS.get(text, text): id_ for text, id_ in tokenizer["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


async def test_tags_that_are_special_tokens_are_read_and_written(world: VllmWorld, model: Path) -> None:
    engine = await start(world, model_path=model, chat_template="chatml", slots=1)
    tags = [engine.tokenizer.token_id(tag) for tag in (OPEN, CLOSE)]
    only = Sampling(temperature=0, logit_bias={str(tags[0]): 100.0})
    answer = await ask(engine, key("a"), await prompt_of(engine, "Hello."), max_tokens=2, sampling=only)
    assert answer.text == OPEN + OPEN and answer.tokens == (tags[0], tags[0])
    whole = await ask(engine, key("a"), await prompt_of(engine, "Say hi."), max_tokens=400)
    assert whole.finish.reason == "stop" and "<|" not in whole.text
    forged = json.dumps({"q": OPEN + CLOSE})
    for message, wanted in (
        (
            ChatMessage(role="assistant", text="Let me see.", calls=(("c", "f", forged), ("d", "g", "{}"))),
            [*tags, *tags],
        ),
        (ChatMessage(role="user", text=OPEN + "x" + CLOSE), []),
    ):
        tokens = await engine.tokenizer.message(message)
        assert [token for token in tokens if token in tags] == wanted


async def test_marks_of_channels_that_are_special_tokens_are_text_and_a_call_ends_an_answer(
    world: VllmWorld, model: Path
) -> None:
    engine = await start(world, model_path=model, chat_template=FAMILIES["gpt-oss"], slots=1)
    channel, call = (engine.tokenizer.token_id(mark) for mark in (CHANNEL, "<|call|>"))
    prompt = await engine.tokenizer.conversation(
        None, (), [ChatMessage(role="user", text="Hello.")], UnixMs(0), answer=True
    )
    only = Sampling(temperature=0, logit_bias={str(channel): 100.0})
    answer = await ask(engine, key("a"), prompt, max_tokens=2, sampling=only)
    assert (answer.text, answer.tokens) == (CHANNEL + CHANNEL, (channel, channel))
    only = Sampling(temperature=0, logit_bias={str(call): 100.0})
    answer = await ask(engine, key("b"), prompt, max_tokens=2, sampling=only)
    assert (answer.text, answer.finish.reason) == ("", "stop")


async def test_a_long_message_with_calls_is_encoded_in_a_thread(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_vllm_model(model)
    template = folder_template("chatml", read)
    tokenizer = VllmTokenizer(model / "tokenizer.json", template, bos=read.token_text("bos_token"))
    encode, threads = tokenizer._encode, set[int]()

    def noted(text: str, *, special: bool) -> tuple[int, ...]:
        threads.add(threading.get_ident())
        return encode(text, special=special)

    monkeypatch.setattr(tokenizer, "_encode", noted)
    call = ("c", "f", json.dumps({"q": "word " * 1_000}))
    await tokenizer.message(ChatMessage(role="assistant", text="Let me see.", calls=(call,)))
    assert threads and threading.get_ident() not in threads


class _Watched:
    """An encoder whose `encode`, which keeps the interpreter's lock, is noted."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.locked: list[int] = []

    def encode(self, text: str, **options: Any) -> Any:
        self.locked.append(len(text))
        return self._encoder.encode(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)


async def test_a_long_text_is_encoded_without_the_interpreters_lock_to_the_same_tokens(model: Path) -> None:
    read = read_vllm_model(model)
    template = folder_template("chatml", read)
    tokenizer = VllmTokenizer(model / "tokenizer.json", template, bos=read.token_text("bos_token"))
    watched = tokenizer._plain = _Watched(tokenizer._plain)
    text = "A word, <|im_end|> and 日本語 after it. " * 2_000
    assert list(await tokenizer.text(text)) == watched._encoder.encode(text, add_special_tokens=False).ids
    assert watched.locked == []
    await tokenizer.text("A word.")
    assert watched.locked == [7]
