"""Files that go into the folder of code and come out of it, as clients of OpenAI's API see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseCodeInterpreterToolCall
from openai.types.responses.response_output_text import AnnotationContainerFileCitation

from inference.simulated import SimulatedOptions
from persistence.memory.database import MemoryDatabase
from sessions.model.knowledge.files import FileQuota, FileQuotas
from sessions.model.types import FunctionCallOutput, Principal, TenantId
from sessions.turn.keyword_filter import KeywordFilterSet
from tests.support.documents.inline import InlineDocuments
from tests.support.doors.code_runs import CODE, logs, run
from tests.support.doors.openai_server import SIMULATED, Serving, serving
from tests.support.doors.tool_service import opened_tools
from tests.support.mcp.opened import until
from transport.auth.authenticator import key_digest

TOOLS = """
[tools.code_interpreter]
kind = "code"
timeout_s = 10
files = 40
kept_files = 3
kept_mb = 1

[tools.weather]
url = "https://weather.example.com/now"
"""
LIST = "import os\nprint(sorted(os.listdir()))"


def key(name: str) -> Principal:
    if name == "service":
        return Principal(tenant=TenantId("local"), key_id=name, role="service", scopes=("admin", "chat", "read"))
    return Principal(tenant=TenantId("local"), key_id=name, user=name, role="user")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    store = MemoryDatabase()
    quotas = FileQuotas(user=FileQuota(files=8))
    async with (
        opened_tools(tmp_path / "tools.toml", TOOLS, store, quotas=lambda _: quotas) as tools,
        serving(
            SimulatedOptions(step_base_s=0.001),
            tools=tools,
            store=store,
            keys={key_digest(name): key(name) for name in ("anna", "bert", "service")},
            documents=InlineDocuments(),
            filters=KeywordFilterSet(input_phrases=["sesame"]),
        ) as made,
    ):
        yield made


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.client("anna") as made:
        yield made


def cited(done: Response) -> list[AnnotationContainerFileCitation]:
    parts = [part for item in done.output if item.type == "message" for part in item.content]
    given = [each for part in parts if part.type == "output_text" for each in part.annotations]
    assert all(isinstance(each, AnnotationContainerFileCitation) for each in given)
    return [each for each in given if isinstance(each, AnnotationContainerFileCitation)]


async def upload(client: openai.AsyncOpenAI, name: str, content: bytes) -> str:
    return (await client.files.create(file=(name, content), purpose="user_data")).id


def container(*file_ids: str) -> Any:
    return [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": [*file_ids]}}]


async def test_files_of_the_container_and_of_messages_are_in_the_folder(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    named, same = await upload(client, "a.csv", b"1,2"), await upload(client, "a.csv", b"other")
    attached = await upload(client, "notes.txt", "für alle".encode())
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_file", "file_id": attached}]
    tools = container(named, same)
    code = f"{LIST}\nprint(open('a.csv').read(), open('a-2.csv').read(), open('notes.txt').read())"
    done = await run(client, server, code, input=[{"role": "user", "content": parts}], tools=tools)
    assert logs(done) == "['a-2.csv', 'a.csv', 'notes.txt']\n1,2 other für alle", "and nothing of it is a new file"
    assert [tool.model_dump(exclude_none=True) for tool in done.tools] == tools
    await client.files.delete(attached)
    after = await run(client, server, LIST, previous_response_id=done.id)
    assert logs(after) == "[]", "the container is the request's, and what is deleted is not there"


async def test_files_that_a_user_may_not_read_are_refused_where_they_are_named(
    client: openai.AsyncOpenAI, server: Serving, http: httpx.AsyncClient
) -> None:
    mine = await upload(client, "a.csv", b"1,2")
    async with server.client("bert") as other:
        for name in (mine, "file-none"):
            with pytest.raises(openai.NotFoundError) as refused:
                await run(other, server, "1", tools=container(name))
            assert refused.value.param == "tools[0].container.file_ids[0]"
        part = {"type": "input_file", "file_id": mine}
        with pytest.raises(openai.NotFoundError):
            await run(other, server, "1", input=[{"role": "user", "content": [part]}])
    weather = {"type": "function", "name": "weather", "server": True}
    create = {"type": "session.create", "id": "c", "tools": [{**weather, "file_ids": [mine]}]}
    answer = await http.post("/v1/commands", json=create, headers={"authorization": "Bearer anna"})
    assert answer.status_code == 400 and "takes no `file_ids`" in answer.text


async def test_wrong_file_ids_are_named_by_their_place(client: openai.AsyncOpenAI, server: Serving) -> None:
    wrong: dict[str, list[str]] = {"file_ids[0]": ["x" * 65], "file_ids": ["x"] * 51}
    for place, names in wrong.items():
        with pytest.raises(openai.BadRequestError) as refused:
            await run(client, server, "1", tools=container(*names))
        assert refused.value.param == f"tools[0].container.{place}"


async def test_what_code_writes_is_a_file_of_its_user(client: openai.AsyncOpenAI, server: Serving) -> None:
    code = "import os\nos.mkdir('plots')\nopen('plots/sum.csv', 'w').write('42')\nprint('written')"
    done = await run(client, server, code, "It is in [the file](sandbox:/mnt/data/plots/sum.csv).")
    assert logs(done) == "written\n[files: plots/sum.csv (2 bytes)]"
    (citation,) = cited(done)
    text = done.output_text
    assert text[citation.start_index : citation.end_index] == "sandbox:/mnt/data/plots/sum.csv"
    assert citation.filename == "sum.csv"
    ran = next(item for item in done.output if isinstance(item, ResponseCodeInterpreterToolCall))
    assert citation.container_id == ran.container_id
    about = await client.files.retrieve(citation.file_id)
    assert (about.filename, about.bytes, about.purpose) == ("sum.csv", 2, "assistants_output")
    assert (await client.files.content(citation.file_id)).content == b"42"
    content = await client.containers.files.content.retrieve(citation.file_id, container_id=ran.container_id)
    assert content.content == b"42"
    async with server.client("bert") as other:
        with pytest.raises(openai.NotFoundError):
            await other.files.content(citation.file_id)
        with pytest.raises(openai.NotFoundError):
            await other.containers.files.content.retrieve(citation.file_id, container_id=ran.container_id)
    (session,) = server.sessions
    (output,) = [
        item
        for record in server.log(session)
        if isinstance(item := getattr(record.event, "item", None), FunctionCallOutput)
    ]
    assert isinstance(output.files, tuple) and [file.file_id for file in output.files] == [citation.file_id]
    assert (await client.responses.retrieve(done.id)).model_dump() == done.model_dump()


async def test_a_stream_has_its_citations_and_can_be_read_again(client: openai.AsyncOpenAI, server: Serving) -> None:
    call = {"name": "code_interpreter", "arguments": {"code": "open('a.txt', 'w').write('x')"}}
    server.engine.script += [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "There."]
    stream = await client.responses.create(model=SIMULATED, input="write", tools=[CODE], stream=True)
    events = [event async for event in stream]
    (added,) = [event for event in events if event.type == "response.output_text.annotation.added"]
    last = events[-1]
    assert last.type == "response.completed"
    (citation,) = cited(last.response)
    assert added.annotation is not None and added.annotation.model_dump() == citation.model_dump()
    assert (citation.start_index, citation.end_index) == (0, 0)
    again = await client.responses.retrieve(last.response.id, stream=True, starting_after=4)
    assert [event.model_dump() async for event in again] == [event.model_dump() for event in events[5:]]


async def test_later_runs_of_the_session_find_the_newest_files(client: openai.AsyncOpenAI, server: Serving) -> None:
    first = await run(client, server, "open('a.txt', 'w').write('one')")
    code = "print(open('a.txt').read())\nopen('a.txt', 'a').write(', two')\nopen('b.txt', 'w').write('b')"
    second = await run(client, server, code, previous_response_id=first.id)
    assert logs(second) == "one\n1\n[files: a.txt (8 bytes), b.txt (1 bytes)]"
    third = await run(client, server, "open('a.txt').read()", previous_response_id=second.id)
    assert logs(third) == "'one, two'" and not cited(third), "what is as it was is no new file"
    branch = await run(client, server, LIST + "\nopen('a.txt').read()", previous_response_id=first.id)
    assert logs(branch) == "['a.txt']\n'one'", "a run finds what its own branch wrote"
    await client.files.delete(cited(second)[0].file_id)
    assert logs(await run(client, server, LIST, previous_response_id=third.id)) == "['b.txt']"
    assert logs(await run(client, server, LIST)) == "[]", "another session finds nothing"


@pytest.mark.slow
async def test_a_history_that_is_sent_again_has_its_files(client: openai.AsyncOpenAI, server: Serving) -> None:
    first = await run(client, server, "open('a.txt', 'w').write('one')")
    again: Any = [
        {"role": "user", "content": "run it"},
        *(item.model_dump() for item in first.output),
        {"role": "user", "content": "and again"},
    ]
    assert logs(await run(client, server, "open('a.txt').read()", input=again)) == "'one'"


@pytest.mark.slow
async def test_beyond_the_bounds_the_output_says_what_is_not_kept(client: openai.AsyncOpenAI, server: Serving) -> None:
    code = "for name in 'abcde':\n    open(name, 'w').write(name)\nopen('big', 'wb').write(bytes(2**20 + 1))\nNone"
    done = await run(client, server, code)
    why = "a run keeps 3 files and 1 MB at most"
    assert logs(done) == (
        f"[files: a (1 bytes), b (1 bytes), c (1 bytes)]\n[files that are not kept: big, d, e; {why}]"
    )
    assert len(cited(done)) == 3
    done = await run(client, server, "for name in 'xyz':\n    open(name, 'w').write(name)\nNone")
    done = await run(client, server, "for name in 'uvw':\n    open(name, 'w').write(name)\nNone")
    assert "[files: u (1 bytes), v (1 bytes)]" in logs(done) and "not kept: w; There is no room" in logs(done)
    assert len((await client.files.list()).data) == 8


async def test_an_output_that_is_refused_names_no_files(client: openai.AsyncOpenAI, server: Serving) -> None:
    done = await run(client, server, "open('open ses' + 'ame', 'w').write('x')")
    assert "content_filter" in logs(done) and "sesame" not in done.model_dump_json() and not cited(done)


@pytest.mark.slow
async def test_no_file_of_a_refused_output_is_attached(client: openai.AsyncOpenAI, server: Serving) -> None:
    code = "for name in ('tool', 'a', 'ses' + 'ame.txt'):\n    open(name, 'w').write('x')"
    done = await run(client, server, code)
    assert "content_filter" in logs(done) and not cited(done)
    assert logs(await run(client, server, LIST, previous_response_id=done.id)) == "[]"


async def test_over_sessions_the_tool_and_its_output_name_the_files(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    mine = await upload(client, "a.csv", b"1,2")
    call = {"name": "code_interpreter", "arguments": {"code": f"{LIST}\nopen('b.txt', 'w').write('b')\nNone"}}
    server.engine.script += [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "There."]
    tool = {"type": "function", "name": "code_interpreter", "server": True, "file_ids": [mine]}
    auth = {"authorization": "Bearer anna"}
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60, headers=auth) as http:

        async def send(**command: Any) -> Any:
            return (await http.post("/v1/commands", json=command)).json()

        refused = await send(type="session.create", id="r", tools=[{**tool, "file_ids": ["file-none"]}])
        assert refused["error"]["param"] == "tools[0].file_ids[0]"
        session = (await send(type="session.create", id="c", tools=[tool]))["session"]
        await send(type="message.create", id="m", session=session, content="go")
        await until(lambda: bool(_outputs(server, session)))
        (output,) = _outputs(server, session)
        assert output.output == "['a.csv']\n[files: b.txt (1 bytes)]" and isinstance(output.files, tuple)
        (file,) = output.files
        assert (await http.get(f"/v1/files/{file.file_id}/content")).content == b"b"
        await server.ended(session)


def _outputs(server: Serving, session: str) -> list[FunctionCallOutput]:
    items = [getattr(record.event, "item", None) for record in server.log(session)]
    return [item for item in items if isinstance(item, FunctionCallOutput)]


@pytest.mark.slow
async def test_after_a_restart_a_run_finds_the_files_of_earlier_ones(tmp_path: Path) -> None:
    store, last = MemoryDatabase(), None
    for code in ("open('a.txt', 'w').write('kept')", "open('a.txt').read()"):
        async with (
            opened_tools(tmp_path / "tools.toml", TOOLS, store) as tools,
            serving(SimulatedOptions(step_base_s=0.001), tools=tools, store=store) as server,
            server.client() as client,
        ):
            done = await run(client, server, code, previous_response_id=last)
            last = done.id
    assert logs(done) == "'kept'"


async def test_a_service_in_a_users_session_reads_and_makes_that_users_files(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    first = await run(client, server, "open('a.txt', 'w').write('a')")
    auth = {"authorization": "Bearer service"}
    async with (
        server.client("bert") as bert,
        server.client("service") as service,
        httpx.AsyncClient(base_url=server.server.url, timeout=60, headers=auth) as http,
    ):
        berts = await upload(bert, "secret.txt", b"of bert")
        code = f"open('b.txt', 'w').write('b')\n{LIST}"
        done = await run(service, server, code, tools=container(berts), previous_response_id=first.id)
        assert logs(done) == "['a.txt', 'b.txt']\n[files: b.txt (1 bytes)]", "bert's file is not in anna's session"
        (written,) = [each.file_id for each in cited(done)]
        assert (await client.files.content(written)).content == b"b"
        assert {file.filename for file in (await client.files.list()).data} == {"a.txt", "b.txt"}
        exported = [json.loads(line) for line in (await http.get("/v1/users/anna/export")).text.splitlines()]
        assert exported[-1]["files"] == 2 and written in {line.get("id") for line in exported}
        assert (await http.post("/v1/users/anna/erase")).status_code in (200, 202)
        with pytest.raises(openai.NotFoundError):
            await service.files.content(written)


@pytest.mark.slow
async def test_a_runs_file_replaces_the_file_that_it_was_made_from_and_no_other(
    client: openai.AsyncOpenAI, server: Serving
) -> None:
    old, new = await upload(client, "data.csv", b"old"), await upload(client, "data.csv", b"new")
    first = await run(client, server, "open('data.csv', 'a').write(' of run 1')", tools=container(old))
    read = "import os\nprint([(name, open(name).read()) for name in sorted(os.listdir())])"
    done = await run(client, server, read, tools=container(new), previous_response_id=first.id)
    assert logs(done) == "[('data-2.csv', 'old of run 1'), ('data.csv', 'new')]"
    done = await run(client, server, read, tools=container(old, new), previous_response_id=first.id)
    assert logs(done) == "[('data-2.csv', 'new'), ('data.csv', 'old of run 1')]", "the run's stands for what it changed"
    write = "open('data.csv', 'a').write(' of run 2')"
    second = await run(client, server, write, tools=container(new), previous_response_id=first.id)
    third = await run(client, server, read, previous_response_id=second.id)
    assert logs(third) == "[('data-2.csv', 'old of run 1'), ('data.csv', 'new of run 2')]", "and both are there later"
    await client.files.delete(cited(second)[0].file_id)
    done = await run(client, server, read, tools=container(new), previous_response_id=third.id)
    assert logs(done) == "[('data-2.csv', 'old of run 1'), ('data.csv', 'new')]"


@pytest.mark.slow
async def test_numbers_of_names_stay_when_a_file_is_deleted(client: openai.AsyncOpenAI, server: Serving) -> None:
    one, two = await upload(client, "a.csv", b"one"), await upload(client, "a.csv", b"two")
    other = await upload(client, "a-2.csv", b"other")
    write = "open('a-2.csv', 'a').write(' of a run')"
    first = await run(client, server, write, tools=container(one, two))
    await client.files.delete(one)
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_file", "file_id": other}]
    code = f"{LIST}\nprint(open('a-2.csv').read(), open('a-2-2.csv').read())"
    look: Any = [{"role": "user", "content": parts}]
    done = await run(client, server, code, input=look, tools=container(two), previous_response_id=first.id)
    assert logs(done) == "['a-2-2.csv', 'a-2.csv']\ntwo of a run other"


@pytest.mark.slow
async def test_folders_count_so_that_a_later_run_has_room(client: openai.AsyncOpenAI, server: Serving) -> None:
    write = (
        "import os, shutil\nfor name in os.listdir():\n    shutil.rmtree(name)\n"
        "for at in range(3):\n    path = '/'.join(f'{at}-%s-{level}' for level in range(8))\n"
        "    os.makedirs(path)\n    open(f'{path}/f', 'w').write('x')\nNone"
    )
    last = None
    for name in "ab":
        done = await run(client, server, write.replace("%s", name), previous_response_id=last)
        last = done.id
        assert len(cited(done)) == 3
    done = await run(client, server, "print('fine')", previous_response_id=last)
    assert logs(done).startswith("fine\n[files that were not in the folder: "), logs(done)
