"""Attacks by models of others: a hub, or a mirror that HF_ENDPOINT names, with names of files that steer a terminal or
fit no disk, bytes that nothing vouches for and answers that no hub gives; and a chat template, which is a program, that
raises. Each is a sentence, and nothing of it is put in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.chat_template import CHATML, LITERALS_MAX, ChatTemplate
from inference.models.hub import Hub
from inference.models.library import ModelLibrary
from inference.models.reference import HubModel
from sessions.model.errors import BadInput, SessileError
from sessions.model.types import Tool
from sessions.ports import ChatMessage
from tests.support.engines.hub_server import HubRepo, HubServer

MODEL = HubModel("acme/tiny")
RAISES = {
    "a wrong type": "{{ 1 + 'a' }}",
    "a division": "{{ 1 // 0 }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "an overflow": "{{ 2.0 ** 100000 }}",
    "a format": "{{ '%d' | format('a') }}",
    "what the sandbox forbids": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "changing what it was given": "{% set _ = messages.append(1) %}",
    "syntax": "{% if",
    "a long loop": "{% for i in range(10000000) %}{% endfor %}",
    "more than memory holds": "{{ 'a' * 10 ** 18 }}",
}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.repos["acme/tiny"] = HubRepo({"m.gguf": b"GGUF" + bytes(9000)})
        yield server


def refused(hub: HubServer, folder: Path) -> SessileError:
    before = [path.name for path in folder.rglob("*") if path.is_file()]
    with pytest.raises(SessileError) as caught:
        Hub(ModelLibrary(folder), pause=lambda _: None, endpoint=hub.url).pull(MODEL, "gguf")
    left = [path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    assert left == before
    return caught.value


@pytest.mark.parametrize(
    "name", ["m\x1b]0;owned\x07.gguf", "m\nlicence: mit.gguf", "m\u202effug.gguf", "m" * 300 + ".gguf"]
)
def test_a_name_that_is_no_name_of_a_file_is_left_out(hub: HubServer, tmp_path: Path, name: str) -> None:
    hub.repos["acme/tiny"] = HubRepo({name: b"GGUF"})
    error = refused(hub, tmp_path)
    assert error.code == "bad_model" and error.public_message.isprintable()


def test_bytes_without_a_checksum_are_not_fetched(hub: HubServer, tmp_path: Path) -> None:
    hub.repos["acme/tiny"].checksums = False
    error = refused(hub, tmp_path)
    assert error.code == "bad_model_bytes" and "HF_ENDPOINT" in error.public_message and hub.fetches == []


@pytest.mark.parametrize("answer", [b"<html>It works!</html>", b"[]", b'"x"', b"{}", b'{"id":"a/b","siblings":[{}]}'])
def test_an_answer_that_no_hub_gives_is_refused_with_a_message(hub: HubServer, tmp_path: Path, answer: bytes) -> None:
    hub.other_info = answer
    assert refused(hub, tmp_path).code in ("hub_unavailable", "bad_model")


def test_a_folder_that_cannot_be_used_is_refused_with_what_to_do(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no folder")
    with pytest.raises(SessileError, match="--model-folder"):
        Hub(ModelLibrary(tmp_path / "file"), pause=lambda _: None, endpoint=hub.url).pull(MODEL, "gguf")


def test_a_token_goes_to_no_mirror_over_an_open_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub = Hub(ModelLibrary(tmp_path), pause=lambda _: None, endpoint="http://mirror.invalid")
    with pytest.raises(BadInput, match="https only") as caught:
        hub.pull(MODEL, "gguf")
    assert "hf_secret" not in caught.value.public_message


@pytest.mark.parametrize("kind", RAISES)
def test_a_template_that_fails_is_refused_with_what_to_do(kind: str) -> None:
    with pytest.raises(BadInput, match="--chat-template chatml") as caught:
        ChatTemplate(RAISES[kind], bos="", eos="")
    assert "it fails: ." not in caught.value.public_message  # what failed is named, even where the error has no text


def test_tools_that_a_template_cannot_take_are_the_requests_fault() -> None:
    source = CHATML.replace("{{ '\\n' + (tool | tojson) }}", "{{ tool.function.name + tool.function.description }}")
    template = ChatTemplate(source, bos="", eos="")
    assert template.opening(None, [Tool(name="f", description="d", parameters={"type": "object"})])
    with pytest.raises(BadInput, match="these tools") as caught:
        template.opening(None, [Tool(name="f", parameters={"type": "object"})])
    assert caught.value.param == "tools"


def test_a_template_with_very_many_texts_is_not_tried_with_each() -> None:
    texts = "".join(f"{{% if '<{number}>' in messages[0].content %}}{{% endif %}}" for number in range(LITERALS_MAX))
    assert ChatTemplate(texts + CHATML, bos="", eos="").whole and not ChatTemplate(CHATML, bos="", eos="").whole


def test_words_that_leave_no_mark_free_are_the_requests_fault() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content | trim }}{% endfor %}", bos="", eos="")
    noncharacters = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    with pytest.raises(BadInput, match="noncharacters"):
        template.conversation(None, (), [ChatMessage(role="user", text=noncharacters)], 0, answer=True)
    said = [ChatMessage(role="user", text=noncharacters[2:])]
    assert template.conversation(None, (), said, 0, answer=True)[0].text == noncharacters[2:]
