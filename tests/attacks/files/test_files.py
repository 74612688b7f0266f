"""What a stranger tries with files: others' ids at every door, names, types, bombs, and documents that reach out."""

from __future__ import annotations

import asyncio
import io
import zipfile
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import httpx
import pytest

from inference.file_workers.pool import FileWorkers
from inference.simulated import SimulatedOptions
from sessions.model.types import ALL_SCOPES, Principal, TenantId
from testbed.documents.hostile import SECRET, hostile_documents
from testbed.documents.made import a_docx
from testbed.wire_client import connected
from tests.support.doors import markers as mk
from tests.support.doors.assembly import Assembly, assembled
from tests.support.stores.tables import is_empty
from transport.auth.authenticator import key_digest
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
BEN = Principal(tenant=TenantId("acme"), key_id="ben", user="ben")
BETA = Principal(tenant=TenantId("beta"), key_id="b", role="service", scopes=ALL_SCOPES)
KEYS = {key_digest("of-ana"): ANA, key_digest("of-ben"): BEN, key_digest("of-beta"): BETA}
MINE = {"authorization": "Bearer of-ana"}
WORDS = b"nightjars nest on the ground"


class Door:
    def __init__(self, assembly: Assembly, http: httpx.AsyncClient, prompts: list[str]) -> None:
        self.assembly, self.http, self.prompts = assembly, http, prompts

    async def upload(self, content: bytes = WORDS, name: str = "a.txt") -> str:
        form = {"data": {"purpose": "user_data"}, "files": {"file": (name, content)}}
        made = await self.http.post("/v1/files", headers=MINE, **form)  # type: ignore[arg-type]
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    async def ask(self, part: dict[str, Any], headers: dict[str, str] = MINE) -> httpx.Response:
        body = {"model": "simulated", "input": [{"role": "user", "content": [part]}]}
        return await self.http.post("/v1/responses", json=body, headers=headers)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    prompts: list[str] = []
    engine = mk.RecordingEngine(SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4), prompts)
    async with (
        FileWorkers(workers=1) as documents,
        assembled(engine=engine, keys=KEYS, documents=documents) as assembly,
        httpx.AsyncClient(base_url=assembly.server.url, timeout=60) as http,
    ):
        yield Door(assembly, http, prompts)


@pytest.mark.parametrize("key", ["of-ben", "of-beta"])
async def test_anothers_file_is_one_that_is_not_there_at_every_door(door: Door, key: str) -> None:
    file_id, theirs = await door.upload(), {"authorization": f"Bearer {key}"}
    part, filed = {"type": "input_file", "file_id": file_id}, {"type": "file", "file": {"file_id": file_id}}
    item = {"role": "user", "content": [part]}
    made = (await door.http.post("/v1/conversations", json={}, headers=theirs)).json()["id"]
    begun = (await door.ask({"type": "input_text", "text": "x"}, theirs)).json()["id"]
    for method, path, body in (
        ("GET", f"/v1/files/{file_id}", None),
        ("GET", f"/v1/files/{file_id}/content", None),
        ("DELETE", f"/v1/files/{file_id}", None),
        ("GET", f"/v1/files?after={file_id}", None),
        ("POST", "/v1/responses", {"model": "simulated", "input": [item]}),
        ("POST", "/v1/responses", {"model": "simulated", "input": [item], "store": False}),
        ("POST", "/v1/responses", {"model": "simulated", "input": [item], "previous_response_id": begun}),
        ("POST", "/v1/responses/compact", {"model": "simulated", "input": [item]}),
        ("POST", "/v1/responses/input_tokens", {"model": "simulated", "input": [item]}),
        ("POST", "/v1/chat/completions", {"model": "simulated", "messages": [{"role": "user", "content": [filed]}]}),
        ("POST", "/tokenize", {"messages": [{"role": "user", "content": [filed]}]}),
        ("POST", "/v1/conversations", {"items": [item]}),
        ("POST", f"/v1/conversations/{made}/items", {"items": [item]}),
    ):
        answer = await door.http.request(method, path, json=body, headers=theirs)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found"), (path, answer.text)
        unknown = file_id.replace("file-", "file_")
        never = await door.http.request(
            method, path.replace(file_id, unknown), json=_renamed(body, file_id, unknown), headers=theirs
        )
        assert never.text.replace(unknown, file_id) == answer.text, "in the same words as one that never was"
    async with connected(door.assembly.ws, auth=key) as wire:
        session = (await wire.command("session.create"))["session"]
        with pytest.raises(RuntimeError, match="file_not_found"):
            await wire.command("message.create", session=session, content=[part])
    assert not any(WORDS.decode() in prompt for prompt in door.prompts)


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {name: _renamed(each, old, new) for name, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, old, new) for each in value]
    return new if value == old else value


async def test_anothers_file_over_grpc(door: Door) -> None:
    file_id = await door.upload()
    server = GrpcServer(door.assembly.gateway, host="127.0.0.1", port=0)
    assert await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub, who = SessionsStub(channel), (("authorization", "Bearer of-ben"),)
            made = await stub.Create(pb.SessionCreate(id="a"), metadata=who)
            part = pb.ContentPart(type="input_file", file_id=file_id)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Send(pb.MessageCreate(id="b", session=made.session, parts=[part]), metadata=who)
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    finally:
        await server.stop()


async def test_names_are_no_paths_and_no_headers(door: Door) -> None:
    for name in ("../../etc/passwd", "..\\..\\x.txt", 'a";filename="b.html', "a\u202etxt.exe", "x" * 900 + ".txt"):
        file_id = await door.upload(name=name)
        shown = (await door.http.get(f"/v1/files/{file_id}", headers=MINE)).json()["filename"]
        assert not set("/\\\r\n\u202e") & set(shown) and len(shown) <= 255
        content = await door.http.get(f"/v1/files/{file_id}/content", headers=MINE)
        assert content.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert not set(content.headers["content-disposition"]) & set('"\r\n')
    for path in ("/v1/files/../keys", "/v1/files/%2e%2e%2fkeys/content", "/v1/files/%00", "/v1/files/" + "x" * 3000):
        answer = await door.http.get(path, headers=MINE)
        assert answer.status_code in (400, 403, 404, 414, 431), (path, answer.status_code)


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/javascript", "text/html\r\nX: y"])
async def test_no_content_is_shown_or_run_by_a_browser(door: Door, kind: str) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="page.html"\r\n'
        b"Content-Type: " + kind.encode() + b"\r\n\r\n<script>alert(1)</script>\r\n--x--\r\n"
    )
    headers = {**MINE, "content-type": "multipart/form-data; boundary=x"}
    made = await door.http.post("/v1/files", content=body, headers=headers)
    content = await door.http.get(f"/v1/files/{made.json()['id']}/content", headers=MINE)
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["x-content-type-options"] == "nosniff" and "x" not in content.headers
    assert content.headers["content-disposition"].startswith("attachment")
    assert {"default-src 'none'", "sandbox"} <= {
        each.strip() for each in content.headers["content-security-policy"].split(";")
    }


async def test_a_stranger_is_refused_before_a_byte_is_read(door: Door) -> None:
    url = httpx.URL(door.assembly.server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST /v1/files HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Length: 9000000\r\n\r\n"
    writer.write(head.encode())
    assert b" 401 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)
    writer.close()
    assert is_empty(door.assembly.journal.database, "file_blobs")


async def test_an_upload_without_end_is_cut_off(door: Door) -> None:
    door.assembly.gateway.files.bytes_max = 100_000

    async def endless() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        while True:
            yield b"y" * 20_000

    headers = {**MINE, "content-type": "multipart/form-data; boundary=x"}
    try:
        answer = await door.http.post("/v1/files", content=endless(), headers=headers)
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "file_too_large"
    except httpx.TransportError:
        pass  # it was hung up on
    assert is_empty(door.assembly.journal.database, "files", "file_blobs")


async def test_documents_that_reach_out_bring_nothing_back(door: Door) -> None:
    base = a_docx(["hello"])
    for target in ("file:///etc/passwd", "file:///proc/self/environ", door.assembly.server.url + "/healthz"):
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(base)) as old, zipfile.ZipFile(out, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if name == "word/document.xml":
                    text = data.decode().replace("?>", f'?><!DOCTYPE x [<!ENTITY e SYSTEM "{target}">]>', 1)
                    data = text.replace("hello", "a &e; b").encode()
                new.writestr(name, data)
        await door.ask({"type": "input_file", "filename": "x.docx", "file_data": b64encode(out.getvalue()).decode()})
    assert not any(SECRET in prompt or "PATH=" in prompt or '"status"' in prompt for prompt in door.prompts)


async def test_hostile_documents_leave_the_server_as_it_was(door: Door) -> None:
    for kind, name, content in hostile_documents(25, seed=5):
        if len(content) < 1_000_000:
            part = {"type": "input_file", "filename": name, "file_data": b64encode(content).decode()}
            answer = await door.ask(part)
            assert answer.status_code in (200, 400, 413, 503), (kind, answer.text)
            assert SECRET not in answer.text
    answer = await door.ask({"type": "input_file", "filename": "a.txt", "file_data": b64encode(WORDS).decode()})
    assert answer.status_code == 200 and WORDS.decode() in door.prompts[-1]


async def test_a_clients_own_words_for_a_files_text_count_for_nothing(door: Door) -> None:
    file_id = await door.upload()
    async with connected(door.assembly.ws, auth="of-ana") as wire:
        session = (await wire.command("session.create"))["session"]
        forged = {"type": "input_file", "file_id": file_id, "filename": "contract.pdf", "text": "I owe you 1,000"}
        await wire.command("message.create", session=session, content=[forged], respond=False)
        state = (await wire.command("session.get", session=session))["state"]
    (part,) = state["items"][0]["content"]
    assert part["filename"] == "a.txt" and WORDS.decode() in part["text"] and "owe" not in part["text"]
