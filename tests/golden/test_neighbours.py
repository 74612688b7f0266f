"""This release reads what the one before wrote, and writes nothing that the one before cannot read.

`neighbours/` was recorded by the release before, with its own code (tests/support/neighbours/record.py), so that this
needs no history. That the two really run together is in tests/chaos/test_mixed_versions.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from actors.cluster.versions import OURS, common_protocol
from actors.directory.valkey import ValkeyDirectory
from actors.peer import frames as pf
from inference.kv.envelope import KvIdentity, PayloadCheck, check_manifest, decode_header
from persistence.postgres import schema as postgres_schema
from persistence.sql.migrations import read_migrations, required_version
from persistence.sqlite import schema as sqlite_schema
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Member, Owner
from testbed.real_cluster import ALICE, Story, real_cluster, say
from testbed.valkey_server import free_port, running
from tests.support.neighbours.previous import PROTOCOLS, RECORDED, SCHEMA
from tests.support.neighbours.shapes import breaches, shapes, versions

# What is new to the neighbour and never reaches it: the finding, and why.
_TOOLS: Final = "only where --tools names a file, which is set once all processes run this release (docs/tools.md)"
_FILES: Final = "only where somebody attaches a file: --file-bytes 0 until all run this release (docs/files.md)"
_IMAGES: Final = "only of a model that sees: --images no until all run this release (docs/files.md)"
_KNOWLEDGE: Final = "only where somebody names `knowledge`: --vector-stores off until all run this release"
_THOUGHTS: Final = (
    "only of models with thoughts: their templates are no sums of pieces, and could not be started before"
)
_QUESTIONS: Final = "links of protocols below 3 refuse it"
GATED: Final[dict[str, str]] = {
    **{
        f"{place}: {what}.{part}: tag reasoning is new to the neighbour": _THOUGHTS
        for place in ("journal record", "peer message")
        for what, part in (("ContentPartAdded", "part"), ("ContentPartDone", "part"), ("Message", "content"))
    },
    **{
        f"{place}: tag response.reasoning_text.{what} is new to the neighbour": _THOUGHTS
        for place in ("journal record", "peer message: Record.event")
        for what in ("delta", "done")
    },
    "peer message: tag 51 is new to the neighbour": "an operator's `undrain`; links of protocols below 3 refuse it",
    **{
        f"peer message: Inspect.question: tag {what} is new to the neighbour": _QUESTIONS
        for what in ("about_tokenizer", "detokenize", "score")
    },
    **{
        f"peer message: Inspected.answer: tag {what} is new to the neighbour": _QUESTIONS
        for what in ("scores", "texts", "tokenizer")
    },
    "peer message: Execute.command: tag tool.approve is new to the neighbour": "links of protocols below 3 refuse it",
    "journal record: tag tool_call.started is new to the neighbour": _TOOLS,
    **{
        f"{place}: tag tool_call.approval_{what} is new to the neighbour": _TOOLS
        for place in ("journal record", "peer message: Record.event")
        for what in ("decided", "requested")
    },
    **{
        f"{place}: tag program.{what} is new to the neighbour": _TOOLS
        for place in ("journal record", "peer message: Record.event")
        for what in ("called", "returned")
    },
    **{
        f"{place}: tag tool_call.progress is new to the neighbour": _TOOLS
        for place in ("journal record", "peer message: Record.event")
    },
    "peer message: Record.event: tag tool_call.started is new to the neighbour": _TOOLS,
    **{
        f"{where}: {what}: tag input_passage is new to the neighbour": _KNOWLEDGE
        for where in ("journal record", "peer message")
        for what in ("ContentPartAdded.part", "ContentPartDone.part", "Message.content")
    },
    **{
        f"{place}: tag {tag} is new to the neighbour": why
        for tag, why in (("input_file", _FILES), ("input_image", _IMAGES))
        for place in (
            *(
                f"{where}: {what}"
                for where in ("journal record", "peer message")
                for what in ("ContentPartAdded.part", "ContentPartDone.part", "Message.content")
            ),
            *(
                f"peer message: {command}.content list"
                for command in ("MessageCreate", "MessageEdit", "NewMessage", "ResponseSteer")
            ),
        )
    },
}


def recorded(name: str) -> Any:
    return msgspec.json.decode((RECORDED / f"{name}.json").read_bytes())


def holds(new: Any, old: Any) -> bool:
    """Whether all of `old` stands in `new`, which may have more: fields behind, or under other names."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and holds(new[name], old[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(new) >= len(old) and all(map(holds, new, old))
    return bool(new == old)


def test_each_frame_of_the_release_before_is_read_as_it_was_meant() -> None:
    samples = recorded("wire")
    assert len(samples) > 40
    for sample in samples:
        (frame,) = pf.unpack(base64.b64decode(sample["message"]))
        reads = msgspec.json.decode(msgspec.json.encode(frame))
        assert type(frame).__name__ == sample["frame"] and holds(reads, sample["reads"]), sample


def test_what_this_release_writes_the_one_before_can_read() -> None:
    """A field behind the others with a default is no breach. A new frame, event or value is one: it is sent only where
    the link's protocol has it, and then stands in GATED; see docs/upgrading.md."""
    then = recorded("shapes")
    now = shapes()
    snapshots = {"actor snapshot"}  # of another version they are thrown away, and made anew from the log
    if versions()["actor snapshot"] == then["versions"]["actor snapshot"]:
        assert now["actor snapshot"] == then["shapes"]["actor snapshot"], "another shape is another STATE_VERSION"
    found = breaches(
        {name: shape for name, shape in then["shapes"].items() if name not in snapshots},
        {name: shape for name, shape in now.items() if name not in snapshots},
    )
    assert sorted(found) == sorted(GATED)
    same = {"kv snapshot", "journal record"}
    assert {name: versions()[name] for name in same} == {name: then["versions"][name] for name in same}


def test_the_two_releases_share_a_peer_protocol() -> None:
    assert common_protocol(OURS, PROTOCOLS) == PROTOCOLS[1]
    assert OURS[0] == PROTOCOLS[0], "an older program compares a member's `protocol` with its own"


def test_released_migrations_are_never_changed_and_leave_the_database_to_the_release_before() -> None:
    for name, folder in (("postgres", postgres_schema.MIGRATIONS), ("sqlite", sqlite_schema.MIGRATIONS)):
        texts, then = read_migrations(folder), recorded("migrations")[name]
        assert [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts[: len(then)]] == then
        assert len(then) == SCHEMA >= required_version(texts), (
            "a migration that is compatible says so in its first line"
        )


def journal_of_the_release_before(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as file:
        file.executescript((RECORDED / "journal.sql").read_text())


async def test_a_journal_of_the_release_before_is_read_goes_on_and_can_be_given_back(tmp_path: Path) -> None:
    journal_of_the_release_before(tmp_path)
    logs = recorded("logs")
    store = SqliteStore(SqliteDatabase(tmp_path))
    async with real_cluster(1, store=store) as made:
        for session, log in logs.items():
            key = SessionKey(ALICE.tenant, SessionId(session))
            page = await made.journal.read(key, after=0, limit=10_000, bytes_max=1 << 26)
            assert page is not None
            events = [msgspec.json.decode(msgspec.json.encode(record.event)) for record in page.records]
            assert holds(events, log["events"]) and len(events) == len(log["events"])
        router = await made.add_gateway("g1")
        key = SessionKey(ALICE.tenant, SessionId("one"))
        story = Story(router, key)
        await story.ends(await say(router, key, "And then?", tokens=5))
        story.close()
        head = await made.journal.head(key)
        assert head is not None and head.top > len(logs["one"]["events"])
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        assert file.execute("PRAGMA user_version").fetchone()[0] <= SCHEMA


def test_a_kv_snapshot_of_the_release_before_is_taken_in() -> None:
    data = (RECORDED / "kv.bin").read_bytes()
    decoded = decode_header(data)
    assert decoded is not None
    manifest, length = decoded
    identity = KvIdentity("build", "weights", "f32", "layout")
    tokens = check_manifest(manifest, SessionKey(TenantId("acme"), SessionId("one")), identity)
    assert list(tokens) == list(range(600))
    check = PayloadCheck(manifest)
    assert b"".join(check.feed(data[length:])) == bytes(range(256)) * 8
    check.finish()


@pytest.mark.cluster
async def test_what_the_release_before_left_in_the_directory_counts() -> None:
    """Its members, its sessions' owners and its gateways' interest; and it reads ours (the shapes above)."""
    stored = recorded("directory")
    now = time.time_ns() // 1_000_000
    with running(port=free_port()) as server:
        with server.client() as client:
            for name, fields in stored["hashes"].items():
                for field, text in fields.items():
                    value = text
                    if name.endswith((":members", ":leases")):
                        record = msgspec.json.decode(text)
                        record[2] = now  # it was renewed just now
                        value = msgspec.json.encode(record).decode()
                    client.hset(name, field, value)
            for name, scores in stored["sets"].items():
                client.zadd(name, dict.fromkeys(scores, now + 60_000))
        made = ValkeyDirectory(server.url)
        await made.open()
        try:
            (member,) = (await made.view()).members
            assert (member.replica, member.address, member.load) == ("r1", "127.0.0.1:7400", 0.5)
            keys = [SessionKey(TenantId("acme"), SessionId(name)) for name in ("one", "two", "three")]
            owners = [await made.locate(key) for key in keys]
            assert owners == [Owner(ReplicaId("r1"), "i1", ActivationId(f"a-{key.session}")) for key in keys]
            assert await made.watchers(keys[0]) == ["g1"]
            ours = msgspec.structs.replace(member, replica=ReplicaId("r2"), protocols=OURS, version="new")
            view = await made.announce(ours)
            assert [each.replica for each in view.members] == ["r1", "r2"]
            taking = Owner(ReplicaId("r2"), ours.incarnation, ActivationId("b"))
            assert (await made.claim(keys[0], taking)).owner == owners[0], "its lease lives"
            assert (await made.claim(keys[0], taking, instead_of=owners[0])).won
        finally:
            await made.close()


def test_a_member_with_fields_that_a_release_does_not_know_is_read_without_them() -> None:
    """Which is how the release before reads ours: it refuses no field."""
    text = b'{"replica":"r","incarnation":"i","address":"a","model":"m","fingerprint":"f","new":[1]}'
    assert msgspec.json.decode(text, type=Member).replica == "r"
