"""Records what a release writes, for the tests of its neighbour. Run in that release's tree, which writes it:

    PYTHONPATH=TREE:. python tests/support/neighbours/record.py TREE tests/golden/neighbours

`wire.json` has a message of each frame, `directory.json` what lies in Valkey, `journal.sql` a journal and `logs.json`
what was read from it, `kv.bin` a KV snapshot, `migrations.json` what its migrations hash to, `shapes.json` all shapes.
"""

from __future__ import annotations

import array
import asyncio
import base64
import hashlib
import importlib.util
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec


def lines(value: Any) -> bytes:
    """JSON with a line for each thing in it, so that a difference can be read."""
    if isinstance(value, list):
        return b"[\n" + b",\n".join(map(msgspec.json.encode, value)) + b"\n]\n"
    parts = (b"%s: %s" % (msgspec.json.encode(name), msgspec.json.encode(each)) for name, each in value.items())
    return b"{\n" + b",\n".join(parts) + b"\n}\n"


def wire(tree: Path) -> Any:
    """The frames of the release's own test, as they travel and as they read."""
    from actors.peer import frames as pf

    spec = importlib.util.spec_from_file_location("frames_of_release", tree / "tests/unit/actors/peer/test_wire.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [
        {
            "frame": type(frame).__name__,
            "message": base64.b64encode(pf.pack([pf.encode(frame)])).decode(),
            "reads": msgspec.to_builtins(frame, enc_hook=str, builtin_types=(bytes,)),
        }
        for frame in module.FRAMES
    ]


def kv() -> bytes:
    from inference.kv.envelope import KvIdentity, encode_header, make_manifest, tag_payload
    from sessions.model.types import SessionId, SessionKey, TenantId

    payload, snapshot_id = bytes(range(256)) * 8, b"a snapshot's id."
    manifest = make_manifest(
        SessionKey(TenantId("acme"), SessionId("one")),
        KvIdentity("build", "weights", "f32", "layout"),
        array.array("I", range(600)),
        snapshot_id,
        len(payload),
        tag_payload(payload, snapshot_id),
    )
    return encode_header(manifest) + payload


async def journal(folder: Path) -> tuple[str, Any]:
    """A journal with a few conversations as SQL, and what the release reads from it."""
    from persistence.sqlite.database import SqliteDatabase
    from persistence.sqlite.store import SqliteStore
    from sessions.model import commands as cm
    from sessions.model.request import request_of
    from sessions.model.types import CommandId
    from testbed.real_cluster import ALICE, Story, create, new_id, real_cluster, say

    logs = {}
    async with real_cluster(1, store=SqliteStore(SqliteDatabase(folder))) as made:
        router = await made.add_gateway("g1")

        async def order(command: Any, key: Any, **fields: Any) -> Any:
            return await router.execute(
                request_of(ALICE, command(id=CommandId(new_id()), session=key.session, **fields))
            )

        keys = []
        for name in ("one", "two", "three"):
            key = await create(router, name)
            keys.append(key)
            story = Story(router, key)
            first = await order(cm.MessageCreate, key, content="Tell me a story.", max_output_tokens=20)
            await story.ends(first.response_id)
            await story.ends(await say(router, key, "Go on.", tokens=20))
            await order(cm.SessionUpdate, key, title=f"The story of {name}", metadata={"n": 1})
            assert first.item_id is not None
            edit = await order(cm.MessageEdit, key, item_id=first.item_id, content="Another one.", max_output_tokens=9)
            await story.ends(edit.response_id)
            await order(cm.ItemPin, key, item_id=first.item_id)
            story.close()
        await order(cm.SessionDelete, keys[2])
        for key in keys:
            page = await made.journal.read(key, after=0, limit=10_000, bytes_max=1 << 26)
            assert page is not None
            logs[key.session] = {
                "epoch": page.head.epoch,
                "events": [msgspec.to_builtins(record.event) for record in page.records],
            }
    database = sqlite3.connect(folder / "journal.db")
    try:
        (version,), (application,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")
        )
        pragmas = f"PRAGMA user_version = {version};\nPRAGMA application_id = {application};\n"
        return "\n".join(database.iterdump()) + "\n" + pragmas, logs
    finally:
        database.close()


async def directory() -> Any:
    """What a member, its sessions and a gateway's interest look like on a server."""
    from actors.directory.valkey import ValkeyDirectory
    from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
    from sessions.ports import Member, Owner
    from testbed.valkey_server import free_port, running

    with running(port=free_port()) as server:
        made = ValkeyDirectory(server.url)
        await made.open()
        member = Member(
            replica=ReplicaId("r1"), incarnation="i1", address="127.0.0.1:7400", model="m", fingerprint="w/t", load=0.5
        )
        await made.announce(member)
        keys = [SessionKey(TenantId("acme"), SessionId(name)) for name in ("one", "two", "three")]
        for key in keys:
            await made.claim(key, Owner(ReplicaId("r1"), "i1", ActivationId(f"a-{key.session}")))
        await made.watch("g1", keys[:1])
        await made.close()
        with server.client() as client:
            hashes, sets = {}, {}
            for name in sorted(client.keys("*")):
                if client.type(name) == b"hash":
                    pairs: Any = client.hgetall(name)
                    hashes[name.decode()] = {one.decode(): two.decode() for one, two in sorted(pairs.items())}
                else:
                    scored: Any = client.zrange(name, 0, -1, withscores=True)
                    sets[name.decode()] = {one.decode(): score for one, score in scored}
    return {"hashes": hashes, "sets": sets}


def migrations() -> dict[str, list[str]]:
    from persistence.postgres import schema as postgres_schema
    from persistence.sql.migrations import read_migrations
    from persistence.sqlite import schema as sqlite_schema

    folders = {"postgres": postgres_schema.MIGRATIONS, "sqlite": sqlite_schema.MIGRATIONS}
    return {
        name: [hashlib.sha256(text.encode()).hexdigest()[:16] for text in read_migrations(folder)]
        for name, folder in folders.items()
    }


async def main(tree: Path, out: Path) -> None:
    spec = importlib.util.spec_from_file_location("shapes_here", Path(__file__).with_name("shapes.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        text, logs = await journal(Path(folder))
    (out / "journal.sql").write_text(text)
    for name, value in {
        "wire": wire(tree),
        "directory": await directory(),
        "logs": logs,
        "migrations": migrations(),
        "shapes": {"shapes": module.shapes(), "versions": module.versions()},
    }.items():
        (out / f"{name}.json").write_bytes(lines(value))
    (out / "kv.bin").write_bytes(kv())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
