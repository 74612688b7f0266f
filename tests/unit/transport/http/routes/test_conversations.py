"""`/v1/conversations`: sessions under OpenAI's name, and the items of their branch."""

from __future__ import annotations

from sessions.model.commands import ActorCommand, Ok, SessionDelete, SessionUpdate, TurnCreate
from sessions.model.events import ItemCreated
from sessions.model.types import Principal, derived_session_id
from tests.support.doors.transport import FakeSessions, created, gateway_over, http_client, memory_sessions, message


async def opened() -> FakeSessions:
    sessions = await memory_sessions()
    await sessions.append("s", created(), ItemCreated(item=message("one", "a")))
    return sessions


async def test_a_new_conversation_is_the_session_that_follows_from_the_key() -> None:
    sessions = await memory_sessions()

    async def create(principal: Principal, command: ActorCommand) -> Ok:
        assert isinstance(command, TurnCreate) and not command.respond
        assert command.session == derived_session_id(principal, command.id)
        await sessions.append(command.session, created())
        return Ok(id=command.id, session=command.session)

    sessions.answer = create
    async with http_client(gateway_over(sessions)) as client:
        body = {"items": [{"role": "user", "content": "hi"}]}
        made = (await client.post("/v1/conversations", json=body, headers={"idempotency-key": "k"})).json()
        assert made["object"] == "conversation" and made["id"] == sessions.executed[0].session
        again = (await client.post("/v1/conversations", json=body, headers={"idempotency-key": "k"})).json()
        assert again["id"] == made["id"]


async def test_items_are_those_of_the_present_branch() -> None:
    async with http_client(gateway_over(await opened())) as client:
        page = (await client.get("/v1/conversations/s/items")).json()
        assert [item["id"] for item in page["data"]] == ["a"]
        assert (await client.get("/v1/conversations/s/items/a")).json()["id"] == "a"
        assert (await client.get("/v1/conversations/s/items/b")).json()["error"]["code"] == "item_not_found"
        assert (await client.get("/v1/conversations/s")).json()["id"] == "s"


async def test_changes_are_commands() -> None:
    sessions = await opened()
    async with http_client(gateway_over(sessions)) as client:
        assert (await client.post("/v1/conversations/s", json={"metadata": {"a": "b"}})).status_code == 200
        assert (await client.delete("/v1/conversations/s")).json()["deleted"]
        added = await client.post("/v1/conversations/s/items", json={"items": []})
        assert added.json()["data"] == []
    assert [type(command) for command in sessions.executed] == [SessionUpdate, SessionDelete, TurnCreate]
