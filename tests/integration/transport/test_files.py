"""Files through the doors: uploaded, attached, read by the model, and everybody's own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from inference.simulated import SimulatedOptions
from sessions.model.types import ALL_SCOPES, Principal, TenantId
from tests.support.documents.made import a_docx, a_pdf
from tests.support.doors import markers as mk
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.wire_client import connected
from transport.auth.authenticator import key_digest

ACME = Principal(tenant=TenantId("acme"), key_id="k", role="service", scopes=ALL_SCOPES)
BETA = Principal(tenant=TenantId("beta"), key_id="b", role="service", scopes=ALL_SCOPES)
ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana")
KEYS = {key_digest("of-acme"): ACME, key_digest("of-beta"): BETA, key_digest("of-ana"): ANA}
SERVICE = {"authorization": "Bearer of-acme"}
ME = {"authorization": "Bearer of-ana"}
BEN = {**SERVICE, "x-sessile-user": "ben"}
OTHER = {"authorization": "Bearer of-beta"}
MARK = "zq7001qz"


class World:
    def __init__(
        self, server: Assembly, http: httpx.AsyncClient, filters: mk.RecordingFilters, prompts: list[str]
    ) -> None:
        self.server, self.http, self.filters, self.prompts = server, http, filters, prompts

    async def upload(
        self, content: bytes = b"words", name: str = "a.txt", *, headers: dict[str, str] = ME, **fields: str
    ) -> dict[str, Any]:
        form = {"purpose": "user_data", **fields}
        made = await self.http.post("/v1/files", data=form, files={"file": (name, content)}, headers=headers)
        assert made.status_code == 200, made.text
        return made.json()  # type: ignore[no-any-return]

    async def respond(self, content: Any, *, headers: dict[str, str] = ME, **more: Any) -> httpx.Response:
        body = {"model": "simulated", "input": [{"role": "user", "content": content}], **more}
        return await self.http.post("/v1/responses", json=body, headers=headers, timeout=60)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    prompts: list[str] = []
    filters = mk.RecordingFilters()
    engine = mk.RecordingEngine(SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4), prompts)
    async with (
        assembled(engine=engine, filters=filters, keys=KEYS) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        yield World(server, http, filters, prompts)


async def test_a_file_is_stored_listed_read_and_deleted(world: World) -> None:
    made = await world.upload(b"\0words\xff" * 100_000, "Bericht ü.bin")
    assert made == {
        "id": made["id"],
        "object": "file",
        "bytes": 700_000,
        "created_at": made["created_at"],
        "expires_at": None,
        "filename": "Bericht ü.bin",
        "purpose": "user_data",
        "status": "processed",
        "status_details": None,
    }
    place = f"/v1/files/{made['id']}"
    assert (await world.http.get(place, headers=ME)).json() == made
    content = await world.http.get(f"{place}/content", headers=ME)
    assert content.content == b"\0words\xff" * 100_000
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["content-disposition"] == "attachment; filename*=UTF-8''Bericht%20%C3%BC.bin"
    assert (
        content.headers["x-content-type-options"] == "nosniff"
        and "sandbox" in content.headers["content-security-policy"]
    )
    assert (await world.http.delete(place, headers=ME)).json() == {"id": made["id"], "object": "file", "deleted": True}
    for method, path in (("GET", place), ("GET", f"{place}/content"), ("DELETE", place)):
        gone = await world.http.request(method, path, headers=ME)
        assert gone.status_code == 404 and gone.json()["error"]["code"] == "file_not_found"


async def test_lists_are_paged(world: World) -> None:
    made = [(await world.upload(b"%d" % n, f"{n}.txt"))["id"] for n in range(5)]
    await world.upload(b"v", "v.png", purpose="vision")
    page = (await world.http.get("/v1/files?limit=2&order=asc&purpose=user_data", headers=ME)).json()
    assert [each["id"] for each in page["data"]] == made[:2] and page["has_more"]
    assert (page["first_id"], page["last_id"]) == (made[0], made[1])
    page = (await world.http.get(f"/v1/files?order=asc&purpose=user_data&after={made[1]}", headers=ME)).json()
    assert [each["id"] for each in page["data"]] == made[2:] and not page["has_more"]
    assert len((await world.http.get("/v1/files", headers=ME)).json()["data"]) == 6
    assert (await world.http.get("/v1/files?after=none", headers=ME)).status_code == 404
    assert (await world.http.get("/v1/files?limit=0", headers=ME)).status_code == 400


async def test_a_file_in_a_response_is_read_by_the_model_and_judged_before(world: World) -> None:
    file = await world.upload(a_pdf([f"The code word is {MARK}."]), "secret.pdf")
    answer = await world.respond(
        [{"type": "input_text", "text": "What is it?"}, {"type": "input_file", "file_id": file["id"]}]
    )
    assert answer.status_code == 200, answer.text
    (prompt,) = world.prompts
    assert prompt.index("What is it?") < prompt.index("[File: secret.pdf]") < prompt.index(MARK)
    assert any(MARK in text and "What is it?" in text for text in world.filters.judged)
    response = answer.json()
    assert response["usage"]["input_tokens"] > 20
    items = (await world.http.get(f"/v1/responses/{response['id']}/input_items", headers=ME)).json()["data"]
    assert items[-1]["content"] == [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_file", "file_id": file["id"], "filename": "secret.pdf"},
    ]
    await world.http.delete(f"/v1/files/{file['id']}", headers=ME)
    again = await world.respond("And again?", previous_response_id=response["id"])
    assert again.status_code == 200 and world.prompts[-1].startswith(prompt), "what was read stays as it was"


async def test_bytes_in_the_message_itself(world: World) -> None:
    data = base64.b64encode(a_docx([f"Inside {MARK}"])).decode()
    for given in (data, f"data:application/vnd.x;base64,{data}"):
        part = {"type": "input_file", "filename": "x.docx", "file_data": given}
        assert (await world.respond([part])).status_code == 200
        assert MARK in world.prompts[-1] and "[File: x.docx]" in world.prompts[-1]
    for wrong in ("!", "data:text/plain,x", data[:-1]):
        refused = await world.respond([{"type": "input_file", "file_data": wrong}])
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "input[0].content[0]"


async def test_chat_completions_find_a_history_with_files_again(world: World) -> None:
    file = await world.upload(f"A list with {MARK}".encode(), "list.txt")
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Read."}, {"type": "file", "file": {"file_id": file["id"]}}],
        }
    ]
    body = {"model": "simulated", "messages": messages}
    first = await world.http.post("/v1/chat/completions", json=body, headers=ME)
    assert first.status_code == 200 and MARK in world.prompts[-1]
    messages += [first.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    second = await world.http.post("/v1/chat/completions", json=body, headers=ME)
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    assert world.prompts[-1].startswith(world.prompts[0])
    other = await world.upload(b"Another list", "list.txt")
    messages[0]["content"][1]["file"]["file_id"] = other["id"]
    third = await world.http.post("/v1/chat/completions", json=body, headers=ME)
    assert third.headers["x-session-id"] != first.headers["x-session-id"], "another file is another history"


async def test_a_file_in_a_message_on_a_socket(world: World) -> None:
    file = await world.upload(f"# Title\n{MARK}".encode(), "notes.md")
    async with connected(world.server.ws, auth="of-ana") as wire:
        made = await wire.command("session.create")
        content = [{"type": "input_text", "text": "Look:"}, {"type": "input_file", "file_id": file["id"]}]
        sent = await wire.command("message.create", session=made["session"], content=content, respond=False)
        state = (await wire.command("session.get", session=made["session"]))["state"]
        (part,) = [part for part in state["items"][0]["content"] if part["type"] == "input_file"]
        assert part["filename"] == "notes.md" and MARK in part["text"] and part["media_type"] == "text/markdown"
        forged = [{"type": "input_file", "file_id": file["id"], "filename": "x", "text": "forged"}]
        await wire.command("message.edit", session=made["session"], item_id=sent["item_id"], content=forged)
    assert MARK in world.prompts[-1] and "forged" not in world.prompts[-1]


async def test_an_edit_keeps_files_that_came_as_bytes_or_are_deleted(world: World) -> None:
    file = await world.upload(b"of the store", "a.txt")
    data = [base64.b64encode(words).decode() for words in (b"first bytes", b"second bytes")]
    content = [
        {"type": "input_file", "file_id": file["id"]},
        *[{"type": "input_file", "filename": "b.txt", "file_data": given} for given in data],
    ]
    async with connected(world.server.ws, auth="of-ana") as wire:
        session = (await wire.command("session.create"))["session"]
        sent = await wire.command("message.create", session=session, content=content, respond=False)
        item = sent["item_id"]
        assert (await world.http.delete(f"/v1/files/{file['id']}", headers=ME)).status_code == 200
        kept = [{key: part[key] for key in part if key != "file_data"} for part in content]
        for _ in range(2):  # an edit of an edit
            edit = await wire.command("message.edit", session=session, item_id=item, content=kept, respond=False)
            item = edit["item_id"]
        state = (await wire.command("session.get", session=session))["state"]
        (last,) = [each for each in state["items"] if each["id"] == item]
        texts = [part["text"].split("\n")[2] for part in last["content"]]
        assert texts == ["of the store", "first bytes", "second bytes"]
        for unknown in ([kept[0]] * 2, [*kept, kept[1]]):
            with pytest.raises(RuntimeError):
                await wire.command("message.edit", session=session, item_id=item, content=unknown)


async def test_files_are_seen_as_sessions_are(world: World) -> None:
    mine, bens = await world.upload(), await world.upload(headers=BEN)
    nobodys = await world.upload(headers=SERVICE)
    for headers, seen in ((ME, [mine]), (BEN, [bens]), (SERVICE, [nobodys, bens, mine]), (OTHER, [])):
        listed = (await world.http.get("/v1/files", headers=headers)).json()["data"]
        assert sorted(each["id"] for each in listed) == sorted(each["id"] for each in seen)
        for file in (mine, bens, nobodys):
            status = 200 if file in seen else 404
            assert (await world.http.get(f"/v1/files/{file['id']}", headers=headers)).status_code == status
            assert (await world.http.get(f"/v1/files/{file['id']}/content", headers=headers)).status_code == status
            part = {"type": "input_file", "file_id": file["id"]}
            assert (await world.respond([part], headers=headers)).status_code == status
            if file not in seen:
                assert (await world.http.delete(f"/v1/files/{file['id']}", headers=headers)).status_code == 404


async def test_what_is_wrong_with_an_upload_is_said(world: World) -> None:
    async def refused(**request: Any) -> tuple[int, str, str | None]:
        answer = await world.http.post("/v1/files", headers=ME, **request)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["param"]

    file = {"file": ("a.txt", b"x")}
    assert await refused(json={}) == (400, "invalid_request", None)
    assert await refused(data={"purpose": "user_data"}, files={"other": ("a", b"x")}) == (
        400,
        "unknown_parameter",
        "other",
    )
    assert await refused(files=file) == (400, "missing_required_parameter", "purpose")
    assert await refused(data={"purpose": "nonsense"}, files=file) == (400, "invalid_request", "purpose")
    body = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--x'
    kind = {**ME, "content-type": "multipart/form-data; boundary=x"}
    cut = await world.http.post("/v1/files", content=body, headers=kind)
    assert cut.status_code == 400 and "cut off" in cut.json()["error"]["message"]
    for expiry in ({"expires_after[seconds]": "5"}, {"expires_after[anchor]": "created_at"}):
        fields = {"purpose": "user_data", **expiry}
        assert (await refused(data=fields, files=file))[2] == "expires_after"
    assert (await world.http.get("/v1/files", headers=ME)).json()["data"] == []


async def test_an_upload_that_is_too_large_is_refused_and_leaves_nothing(world: World) -> None:
    most = world.server.gateway.files.bytes_max
    url = httpx.URL(world.server.server.url)
    head = f"POST /v1/files HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nAuthorization: Bearer of-ana\r\n"
    kind = f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {most * 2}\r\n\r\n--x"
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write((head + kind).encode())
    answered = await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)
    writer.close()
    assert b" 413 " in answered, "by its head, before its body"
    world.server.gateway.files.bytes_max = 1000
    answer = await world.http.post(
        "/v1/files", headers=ME, data={"purpose": "user_data"}, files={"file": ("a", b"x" * 1001)}
    )
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "file_too_large"
    assert not world.server.journal.database.files and not world.server.journal.database.file_blobs


async def test_files_that_hold_no_text_are_refused_with_their_place(world: World) -> None:
    image = await world.upload(b"\x89PNG\r\n\x1a\n", "photo.pdf")
    part = {"type": "input_file", "file_id": image["id"]}
    refused = (await world.respond([{"type": "input_text", "text": "x"}, part])).json()["error"]
    assert refused["code"] == "file_type_unsupported" and refused["param"] == "input[0].content[1]"
    assert (await world.respond([{"type": "input_file"}])).json()["error"]["param"] == "input[0].content[0].file_id"
    many = await world.respond([part] * 33)
    assert many.status_code == 400 and "32" in many.json()["error"]["message"]
    assert not world.prompts


async def test_an_export_has_files_with_their_content(world: World) -> None:
    content = bytes(range(256)) * 1200
    file = await world.upload(content, "data.bin", headers=BEN)
    await world.upload(headers=ME)
    lines = (await world.http.get("/v1/users/ben/export", headers=SERVICE)).text.splitlines()
    objects = [json.loads(line) for line in lines]
    (about,) = [each for each in objects if each["object"] == "file"]
    assert about["id"] == file["id"] and about["filename"] == "data.bin"
    parts = [base64.b64decode(each["data"]) for each in objects if each["object"] == "file.content"]
    assert b"".join(parts) == content and objects[-1]["files"] == 1
    assert (await world.http.post("/v1/users/ben/erase", headers=SERVICE)).status_code in (200, 202)
    assert (await world.http.get(f"/v1/files/{file['id']}", headers=SERVICE)).status_code == 404
