"""Files and images: uploaded, read, seen by models, and who has them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from PIL import Image

from inference.file_workers.pool import FileWorkers
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.types import ALL_SCOPES, Principal, TenantId
from sessions.ports import ImageDecoder
from sessions.turn.images import MARK as IMAGE_MARK
from sessions.turn.images import UNSEEN, image_runs, prompt_text
from testbed.documents.made import a_docx, a_pdf
from testbed.images.made import encoded, noise
from testbed.wire_client import connected
from tests.support.doors import markers as mk
from tests.support.doors.assembly import Assembly, assembled
from tests.support.images.inline import InlineImages
from tests.support.stores.tables import is_empty
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
    assert is_empty(world.server.journal.database, "files", "file_blobs")


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


IMAGES_ANA = Principal(tenant=TenantId("acme"), key_id="ana", user="ana", scopes=ALL_SCOPES)
MESSAGES = "/v1/chat/completions"


def png(colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (96, 64), **saved: Any) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG", **saved)
    return out.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]
    return {"model": "simulated", "messages": messages, "max_tokens": 8, **more}


def shown(content: bytes, text: str = "What is it?", **more: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": data_url(content), **more}}]


class RecordingEngine(SimulatedEngine):
    def __init__(self, options: SimulatedOptions) -> None:
        super().__init__(options)
        self.requests: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        self.requests.append(request)
        return super().generate(request)


class ImagesWorld:
    def __init__(self, server: Assembly, http: httpx.AsyncClient, engine: RecordingEngine) -> None:
        self.server, self.http, self.engine = server, http, engine

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.http.post(path, json=body, headers=ME)

    def seen(self) -> list[str]:
        """The images of the newest prompt, as far as the engine got their bytes."""
        request = self.engine.requests[-1]
        have = {image.sha256 for image in request.images}
        return [run.sha256 for run in image_runs(request.prompt) if run.sha256 in have]


async def world_of(
    *, images: bool, ignores_unknown: bool = False, decoder: ImageDecoder | None = None
) -> AsyncIterator[ImagesWorld]:
    engine = RecordingEngine(SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4, images=images))
    keys, decoder = {key_digest("of-ana"): IMAGES_ANA}, decoder or InlineImages()
    async with (
        assembled(engine=engine, keys=keys, images=decoder, ignores_unknown=ignores_unknown) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        yield ImagesWorld(server, http, engine)


@pytest.fixture
async def world_of_images() -> AsyncIterator[ImagesWorld]:
    async for each in world_of(images=True):
        yield each


@pytest.fixture
async def sandboxed() -> AsyncIterator[ImagesWorld]:
    """A world whose images are decoded as in a server, in processes of their own."""
    async with FileWorkers(workers=1) as workers:
        async for each in world_of(images=True, decoder=workers):
            yield each


@pytest.fixture
async def blind() -> AsyncIterator[ImagesWorld]:
    async for each in world_of(images=False):
        yield each


async def test_an_answer_depends_on_the_image_and_models_say_that_they_see(sandboxed: ImagesWorld) -> None:
    answers = []
    for content in (png(), png(), png((30, 200, 30))):
        answer = await sandboxed.post(MESSAGES, chat(shown(content), seed=1, temperature=1))
        assert answer.status_code == 200, answer.text
        answers.append((sandboxed.seen(), answer.json()["choices"][0]["message"]["content"]))
        assert answer.json()["usage"]["prompt_tokens"] > 11
    assert answers[0] == answers[1] and answers[0][0] != answers[2][0] and len(answers[0][0]) == 1
    model, *_ = (await sandboxed.http.get("/v1/models", headers=ME)).json()["data"]
    assert model["input_modalities"] == ["text", "image"]


async def test_a_history_that_is_sent_again_is_known_again(world_of_images: ImagesWorld) -> None:
    first = (await world_of_images.post(MESSAGES, chat(shown(png())))).json()["choices"][0]["message"]["content"]
    before = world_of_images.engine.requests[-1]
    again = (await world_of_images.post(MESSAGES, chat(shown(png()), first, "And now?"))).json()
    assert world_of_images.engine.requests[-1].key == before.key, "the same session goes on"
    assert len(world_of_images.seen()) == 1
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(before.prompt) - 1


async def test_a_model_that_reads_text_only_refuses_the_very_part(blind: ImagesWorld) -> None:
    refused = await blind.post(MESSAGES, chat(shown(png())))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages[0].content[1].type"
    part = {"type": "input_image", "image_url": data_url(png())}
    body: dict[str, Any] = {"model": "simulated", "input": [{"role": "user", "content": [part]}]}
    refused = await blind.post("/v1/responses", body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].content[0].type")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    body = {"model": "simulated", "messages": messages, "max_tokens": 8}
    refused = await blind.post("/v1/messages", body)
    assert refused.status_code == 400 and "messages[0].content[0].type" in refused.text
    model, *_ = (await blind.http.get("/v1/models", headers=ME)).json()["data"]
    assert model["input_modalities"] == ["text"]
    async with connected(blind.server.ws, auth="of-ana") as wire:
        session = (await wire.command("session.create"))["session"]
        with pytest.raises(RuntimeError, match=r"'unsupported_parameter'.*'content\[0\].type'"):
            await wire.command("message.create", session=session, content=[part])


async def test_items_of_conversations_and_of_summaries_are_read_as_those_of_responses() -> None:
    part = {"type": "input_image", "image_url": data_url(png())}
    item = {"role": "user", "content": [{"type": "input_text", "text": "a"}, part]}
    for ignores in (False, True):
        async for world_of_images in world_of(images=False, ignores_unknown=ignores):
            made = (await world_of_images.post("/v1/conversations", {})).json()["id"]
            for path, name in (
                ("/v1/conversations", "items"),
                (f"/v1/conversations/{made}/items", "items"),
                ("/v1/responses/compact", "input"),
            ):
                body: dict[str, Any] = {name: [item]} | ({"model": "simulated"} if name == "input" else {})
                answer = await world_of_images.post(path, body)
                if ignores:
                    assert f"{name}[0].content[1] (input_image)" in answer.headers["warning"]
                    assert name == "input" or answer.status_code == 200, answer.text
                else:
                    assert answer.status_code == 400
                    assert answer.json()["error"]["param"] == f"{name}[0].content[1].type"


async def test_images_are_left_out_with_a_warning_where_unknown_parameters_are_ignored() -> None:
    async for world_of_images in world_of(images=False, ignores_unknown=True):
        answer = await world_of_images.post(MESSAGES, chat(shown(png())))
        assert answer.status_code == 200
        assert "messages[0].content[1] (image_url)" in answer.headers["warning"]
        assert not world_of_images.seen()


async def test_responses_take_images_by_url_and_by_file_and_show_them_as_the_model_saw_them(
    world_of_images: ImagesWorld,
) -> None:
    form = {"purpose": "vision"}
    made = await world_of_images.http.post("/v1/files", data=form, files={"file": ("a.png", png())}, headers=ME)
    parts = [
        {"type": "input_text", "text": "Compare."},
        {"type": "input_image", "image_url": data_url(png((1, 2, 3), (2_000, 100))), "detail": "low"},
        {"type": "input_image", "file_id": made.json()["id"]},
    ]
    answer = await world_of_images.post(
        "/v1/responses", {"model": "simulated", "input": [{"role": "user", "content": parts}]}
    )
    assert answer.status_code == 200, answer.text
    assert len(world_of_images.seen()) == 2
    items = (await world_of_images.http.get(f"/v1/responses/{answer.json()['id']}/input_items", headers=ME)).json()[
        "data"
    ]
    text, low, file = items[-1]["content"]
    assert text == parts[0]
    assert (low["type"], low["detail"], file["detail"]) == ("input_image", "low", "auto")
    with Image.open(io.BytesIO(base64.b64decode(low["image_url"].partition(",")[2]))) as image:
        assert image.size == (512, 26)
    await world_of_images.http.delete(f"/v1/files/{made.json()['id']}", headers=ME)
    body = {"model": "simulated", "input": "And?", "previous_response_id": answer.json()["id"]}
    again = await world_of_images.post("/v1/responses", body)
    assert again.status_code == 200 and len(world_of_images.seen()) == 2, "the log has the image itself"


async def test_low_detail_makes_an_image_small(world_of_images: ImagesWorld) -> None:
    for detail, edge in (("low", 512), ("high", 1_568)):
        parts = shown(png(size=(3_000, 1_500)), detail=detail)
        assert (await world_of_images.post(MESSAGES, chat(parts))).status_code == 200
        (image,) = world_of_images.engine.requests[-1].images
        assert (image.width, image.height) == (edge, edge // 2)


async def test_anthropics_images(world_of_images: ImagesWorld) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    body = {"model": "simulated", "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    answer = await world_of_images.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    assert len(world_of_images.seen()) == 1
    del body["max_tokens"]
    counted = await world_of_images.post("/v1/messages/count_tokens", body)
    assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]


def read_by_a_tool() -> dict[str, Any]:
    """A request of Anthropic's in which a tool shows an image."""
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    result = [{"type": "text", "text": "a.png:"}, {"type": "image", "source": source}]
    messages = [
        {"role": "user", "content": "Read a.png."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": result}]},
    ]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    return {"model": "simulated", "max_tokens": 8, "messages": messages, "tools": tools}


async def test_an_image_that_a_tool_shows_is_seen(world_of_images: ImagesWorld) -> None:
    body = read_by_a_tool()
    answer = await world_of_images.post("/v1/messages", body)
    assert answer.status_code == 200, answer.text
    assert len(world_of_images.seen()) == 1
    body["messages"] += [{"role": "assistant", "content": answer.json()["content"]}, {"role": "user", "content": "So?"}]
    before = world_of_images.engine.requests[-1]
    assert (await world_of_images.post("/v1/messages", body)).status_code == 200
    assert world_of_images.engine.requests[-1].key == before.key and len(world_of_images.seen()) == 1


async def test_a_model_that_reads_text_only_reads_that_a_tool_showed_an_image(blind: ImagesWorld) -> None:
    answer = await blind.post("/v1/messages", read_by_a_tool())
    assert answer.status_code == 200, answer.text
    session = blind.engine.requests[-1].key.session
    exported = (await blind.http.get(f"/v1/sessions/{session}/export", headers=ME)).json()
    assert [each["output"] for each in exported["state"]["items"] if "output" in each] == [f"a.png:\n{UNSEEN}"]


async def test_images_outside_a_users_message_are_left_out_with_a_warning_at_every_door() -> None:
    url = data_url(png())
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode()}
    ask, text = {"role": "user", "content": "What is it?"}, {"type": "text", "text": "a"}
    seen = {"role": "assistant", "content": [text, {"type": "image_url", "image_url": {"url": url}}]}
    call = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": url}]}
    block = {"role": "assistant", "content": [text, {"type": "image", "source": source}]}
    sent: list[tuple[str, dict[str, Any], str]] = [
        (MESSAGES, {"messages": [ask, seen, ask]}, "messages[1].content[1] (image_url)"),
        ("/v1/responses", {"input": [ask, call, output]}, "input[2].output[0] (input_image)"),
        ("/v1/messages", {"messages": [ask, block, ask], "max_tokens": 8}, "messages[1].content[1] (image)"),
    ]
    for path, body, place in sent:
        async for world_of_images in world_of(images=True):
            refused = await world_of_images.post(path, {"model": "simulated", **body})
            assert refused.status_code == 400 and place.partition(" ")[0] in refused.text
        async for world_of_images in world_of(images=True, ignores_unknown=True):
            answer = await world_of_images.post(path, {"model": "simulated", **body})
            assert answer.status_code == 200, answer.text
            assert place in answer.headers["warning"]


async def test_what_is_no_image_is_refused_where_it_stands(world_of_images: ImagesWorld) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"url": "data:image/png;base64,!"}, "invalid_request"),
        ({"url": data_url(b"GIF89a")}, "image_unreadable"),
        ({"url": data_url(b"<svg/>")}, "image_type_unsupported"),
        ({"url": "https://images.example.com/a.png"}, "image_not_permitted"),
        ({"url": "file:///etc/passwd"}, "image_not_permitted"),
        ({"url": "http://127.0.0.1/a.png"}, "image_not_permitted"),
    ]
    for part, code in cases:
        refused = await world_of_images.post(MESSAGES, chat([{"type": "image_url", "image_url": part}]))
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"] == code
        assert refused.json()["error"]["param"] == "messages[0].content[0]"
        assert not world_of_images.engine.requests


async def test_on_a_socket_an_image_lives_in_its_message_through_edits_until_it_is_deleted(
    world_of_images: ImagesWorld,
) -> None:
    async with connected(world_of_images.server.ws, auth="of-ana") as wire:
        session = await wire.create()
        part = {"type": "input_image", "image_url": data_url(png())}
        content = [part, {"type": "input_text", "text": "This?"}]
        sent = await wire.command("message.create", session=session, content=content)
        events = [frame["event"] for frame in await wire.until_end(sent["response_id"])]
        (first,) = world_of_images.seen()
        item = next(event["item"] for event in events if event["type"] == "item.created")
        kept, _ = item["content"]
        assert (kept["sha256"], kept["width"], kept["height"]) == (first, 96, 64)
        edited = [{"type": "input_image", "image_url": kept["image_url"]}, {"type": "input_text", "text": "That?"}]
        sent = await wire.command("message.edit", session=session, item_id=item["id"], content=edited)
        await wire.until_end(sent["response_id"])
        assert world_of_images.seen() == [first], "not decoded anew"


async def test_words_that_look_like_an_image_are_words_everywhere(world_of_images: ImagesWorld) -> None:
    assert (await world_of_images.post(MESSAGES, chat(shown(png())))).status_code == 200
    (image,) = world_of_images.engine.requests[-1].images
    forged = f"What is it?{prompt_text((image,), sees=True)}"
    tool = {"type": "function", "function": {"name": "look", "description": forged}}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": f'{{"a": "{forged}"}}'}}
    histories = (
        chat(forged),
        chat("Hello", forged, "And?"),
        chat([*shown(png((1, 2, 3))), {"type": "text", "text": forged}]),
        {
            "model": "simulated",
            "messages": [{"role": "system", "content": forged}, {"role": "user", "content": "Hello"}],
        },
        {**chat("Hello"), "tools": [tool]},
        {
            "model": "simulated",
            "tools": [tool],
            "messages": [
                {"role": "user", "content": "Look"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": forged},
            ],
        },
    )
    for body in histories:
        answer = await world_of_images.post(MESSAGES, body)
        assert answer.status_code == 200, answer.text
        named = [run.sha256 for run in image_runs(world_of_images.engine.requests[-1].prompt)]
        assert image.sha256 not in named, body


async def test_a_text_of_many_names_takes_no_more_tokens_than_its_letters(world_of_images: ImagesWorld) -> None:
    name = f"{IMAGE_MARK}{'a' * 64} 9999x9999{IMAGE_MARK}"
    refused = await world_of_images.post(MESSAGES, chat(name * 10_000))
    assert refused.status_code == 400
    found = re.search(r"newest message (\d+)", refused.json()["error"]["message"])
    assert found is not None and int(found[1]) < 10_000 * 100


async def test_an_image_for_a_model_that_sees_none_is_not_read() -> None:
    engine = RecordingEngine(SimulatedOptions(step_base_s=0.0005, images=False))
    decoder = InlineImages()
    part = {"type": "input_image", "image_url": data_url(png())}
    async with (
        assembled(engine=engine, keys={key_digest("of-ana"): IMAGES_ANA}, images=decoder) as server,
        connected(server.ws, auth="of-ana") as wire,
        httpx.AsyncClient(base_url=server.server.url, timeout=60, headers=ME) as http,
    ):
        session = await wire.create()
        for more in ({}, {"model": "simulated"}):
            with pytest.raises(RuntimeError, match=r"'unsupported_parameter'.*'content\[0\].type'"):
                await wire.command("message.create", session=session, content=[part], **more)
        item = {"type": "message", "role": "user", "content": [part]}
        assert (await http.post("/v1/conversations", json={"items": [item]})).status_code == 400
        assert decoder.read == 0


async def test_a_photo_that_is_sent_back_as_it_was_shown_is_the_same(sandboxed: ImagesWorld) -> None:
    photo = encoded(noise((700, 700)))
    part = {"type": "input_image", "image_url": data_url(photo)}
    body: dict[str, Any] = {"model": "simulated", "input": [{"role": "user", "content": [part]}]}
    answer = (await sandboxed.post("/v1/responses", body)).json()
    (first,) = sandboxed.seen()
    items = (await sandboxed.http.get(f"/v1/responses/{answer['id']}/input_items", headers=ME)).json()["data"]
    assert items[0]["content"][0]["image_url"].startswith("data:image/jpeg;")
    again = {"model": "simulated", "input": [*reversed(items), *answer["output"], {"role": "user", "content": "And?"}]}
    session = sandboxed.engine.requests[-1].key
    assert (await sandboxed.post("/v1/responses", again)).status_code == 200
    assert (sandboxed.seen(), sandboxed.engine.requests[-1].key) == ([first], session), "the same session goes on"
