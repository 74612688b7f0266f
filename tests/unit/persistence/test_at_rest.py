"""Bodies, tenants' keys and servers' keys at rest: sealed, rotated, swept, destroyed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from persistence.at_rest.administration import EncryptionAdministration
from persistence.at_rest.codec import SealingCodec
from persistence.at_rest.server_keys import EVERYWHERE_MS, SIGN_IN, StoredServerKeys
from persistence.at_rest.sweep import Reencryption
from persistence.at_rest.tenant_keys import TenantKeys, any_tenant_key
from persistence.at_rest.transit import TransitWrapper
from persistence.at_rest.wrapping import MasterKeyWrapper, WrappedSecret
from persistence.codec import HEAD_ROW, KeyNotLoaded, decode_command, encode_command, with_keys
from persistence.key_database import KeyDatabase, SqliteKeyDatabase
from persistence.master_key import MasterKey, MasterKeyRing, add_master_key, drop_older_master_keys, read_master_keys
from persistence.postgres.keys import PostgresKeyDatabase
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.store import SqliteStore
from sessions.metrics import Metrics
from sessions.model.errors import BadInput, Internal, Unavailable
from sessions.model.journal_types import Snapshot
from sessions.model.memories import MemoryId, UserMemory
from sessions.model.types import TenantId, UnixMs
from tests.support.stores.journals import ACME, MASTER, NOW, SqliteBed, a_codec, a_command, a_log, key, patch, postgres
from transport.auth.sealed_cookies import CookieSealer

TOKEN = "s.stand-in"


class TransitServer:
    """One key, `sessile`, in the mount `transit`."""

    def __init__(self) -> None:
        self.versions = [AESGCM.generate_key(256)]
        self.calls: list[str] = []
        self.answers: list[int] = []
        self.token = TOKEN

    def rotate(self) -> None:
        self.versions.append(AESGCM.generate_key(256))

    def encrypt(self, plaintext: str) -> str:
        nonce = os.urandom(12)
        sealed = nonce + AESGCM(self.versions[-1]).encrypt(nonce, base64.b64decode(plaintext), None)
        return f"vault:v{len(self.versions)}:{base64.b64encode(sealed).decode()}"

    def decrypt(self, ciphertext: str) -> str:
        service, version, text = ciphertext.split(":")
        assert service == "vault"
        sealed = base64.b64decode(text)
        plain = AESGCM(self.versions[int(version[1:]) - 1]).decrypt(sealed[:12], sealed[12:], None)
        return base64.b64encode(plain).decode()

    def answer(self, path: str, token: str | None, body: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.calls.append(path)
        if self.answers:
            return self.answers.pop(0), {"errors": ["as told"]}
        if token != self.token:
            return 403, {"errors": ["permission denied"]}
        try:
            match path:
                case "/v1/transit/encrypt/sessile":
                    return 200, {"data": {"ciphertext": self.encrypt(body["plaintext"]), "key_version": 1}}
                case "/v1/transit/decrypt/sessile":
                    return 200, {"data": {"plaintext": self.decrypt(body["ciphertext"])}}
                case "/v1/transit/rewrap/sessile":
                    return 200, {"data": {"ciphertext": self.encrypt(self.decrypt(body["ciphertext"]))}}
        except (InvalidTag, ValueError, AssertionError, IndexError):
            return 400, {"errors": ["invalid ciphertext"]}
        return 404, {"errors": []}

    @contextmanager
    def running(self) -> Iterator[str]:
        """The service's address, with the mount and the key."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = outer.answer(self.path, self.headers["X-Vault-Token"], body)
                data = json.dumps({"request_id": "r", "lease_id": "", "renewable": False, **answer}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/transit/sessile"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


async def test_actions_change_keys_and_the_status_shows_it(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    codec = store.database.codec
    sweep = Reencryption(store.database, codec, now_ms=lambda: NOW, settle_s=0)

    async def rewrap_kv() -> int:
        return 5

    forgotten = []

    async def forget_tools(tenant: TenantId) -> None:
        forgotten.append(tenant)

    administration = EncryptionAdministration(codec, sweep, rewrap_kv, forget_tools)
    assert (await administration.status()).tenants == []
    await a_log(store.journal, "s", 2)
    await a_log(store.journal, "s", 2, tenant="globex")
    assert (await administration.act("rotate", None)).changed == 2
    assert (await administration.act("rotate", ACME)).changed == 1
    await administration.act("stop", None)
    assert (await administration.status()).stopped and not await sweep.sweep()
    await administration.act("resume", None)
    assert await sweep.sweep()
    acme, globex = (await administration.status()).tenants
    assert (acme.keys, globex.keys) == (3, 2) and acme.changed_rows == 3 and acme.finished_at == NOW
    assert (await administration.act("rewrap", None)).changed == 5  # the master is the same
    with pytest.raises(BadInput):
        await administration.act("destroy", None)
    assert (await administration.act("destroy", ACME)).changed == 3 and forgotten == [ACME]
    head = await store.journal.head(key("s"))
    assert head is not None and head.title is None, "there is a session, of which nothing can be read"
    with pytest.raises(Internal):
        await store.journal.read(key("s"), after=0, limit=10, bytes_max=1 << 20)
    assert await store.journal.head(key("s", "globex")) is not None
    await store.close()


async def test_a_user_whose_keys_were_destroyed_begins_with_new_memories(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)

    def memory(name: str) -> UserMemory:
        return UserMemory(id=MemoryId(name), tenant=ACME, user="ana", text="Likes tea.", created_at=NOW, updated_at=NOW)

    await store.end_users.add_memory(memory("before"))
    await store.database.codec.keys.destroy(ACME)
    assert await store.end_users.memories(ACME, "ana") == []
    await store.end_users.add_memory(memory("since"))
    assert await store.end_users.memories(ACME, "ana") == [memory("since")]
    await store.close()


PLAIN = b"the words of a person"


async def loaded(folder: Path, *, writes: bool = True) -> SealingCodec:
    codec = await a_codec(SqliteKeyDatabase(folder / "keys.db"), writes=writes)
    await codec.load(ACME, "")
    return codec


async def test_a_body_opens_in_its_own_place_only(tmp_path: Path) -> None:
    codec = await loaded(tmp_path)
    key_id, stored = codec.encode(key("s"), 7, PLAIN)
    assert PLAIN not in stored and codec.decode(key("s"), 7, key_id, stored) == PLAIN
    for where, row in ((key("s"), 8), (key("s"), HEAD_ROW), (key("t"), 7)):
        with pytest.raises(Internal):
            codec.decode(where, row, key_id, stored)
    with pytest.raises(Internal):  # another tenant has other keys
        await with_keys(codec, lambda: codec.decode(key("s", "globex"), 7, key_id, stored))


async def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    codec = await loaded(tmp_path)
    key_id, stored = codec.encode(key("s"), 7, PLAIN)
    for at in range(len(stored)):
        changed = bytearray(stored)
        changed[at] ^= 1
        with pytest.raises(Internal):
            codec.decode(key("s"), 7, key_id, bytes(changed))
    for short in (b"", stored[:1], stored[:13], stored[:-1]):
        with pytest.raises(Internal):
            codec.decode(key("s"), 7, key_id, short)


async def test_no_nonce_comes_twice(tmp_path: Path) -> None:
    codec, other = await loaded(tmp_path), await loaded(tmp_path)
    bodies = [each.encode(key("s"), 1, PLAIN)[1] for each in (codec, other) for _ in range(500)]
    assert len({body[1:13] for body in bodies}) == 1000


async def test_a_codec_that_does_not_write_reads(tmp_path: Path) -> None:
    codec, reader = await loaded(tmp_path), await loaded(tmp_path, writes=False)
    assert reader.encode(key("s"), 1, PLAIN) == ("", PLAIN) and codec.decode(key("s"), 1, "", PLAIN) == PLAIN
    key_id, stored = codec.encode(key("s"), 1, PLAIN)
    assert reader.decode(key("s"), 1, key_id, stored) == PLAIN


async def test_a_command_hides_its_digest_too(tmp_path: Path) -> None:
    codec = await loaded(tmp_path)
    digest, answer = encode_command(codec, key("s"), "command k c", b"digest", b"\x01answer")
    assert digest == b"" and b"answer" not in answer and b"digest" not in answer
    assert decode_command(codec, key("s"), "command k c", digest, answer) == (b"digest", b"\x01answer")
    with pytest.raises(Internal):
        decode_command(codec, key("s"), "command k d", digest, answer)


async def test_plain_rows_open_until_the_keys_refuse_them(tmp_path: Path) -> None:
    codec = await a_codec(SqliteKeyDatabase(tmp_path / "keys.db"))
    with pytest.raises(KeyNotLoaded):  # what the keys say is not known
        codec.decode(key("s"), 1, "", PLAIN)
    await codec.load(ACME, "")
    assert codec.decode(key("s"), 1, "", PLAIN) == PLAIN
    assert decode_command(codec, key("s"), "command", b"digest", b"\x01ok") == (b"digest", b"\x01ok")
    await codec.keys.refuse_plain(ACME)
    for decode in (
        lambda: codec.decode(key("s"), 1, "", PLAIN),
        lambda: decode_command(codec, key("s"), "command", b"digest", b"\x01ok"),
    ):
        with pytest.raises(Internal, match="in the clear"):
            decode()
    off = await loaded(tmp_path, writes=False)  # a server that writes rows in the clear reads its own
    assert off.decode(key("s"), 1, "", PLAIN) == PLAIN


ON_EVERY_STORE = pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.cluster)])


class Content(msgspec.Struct, frozen=True):
    text: str


class Gateway:
    """A process on a key store, with what seals its cookies, and a clock of its own."""

    def __init__(self, database: KeyDatabase) -> None:
        self.ms = int(NOW)
        self.database = database
        self.keys = TenantKeys(database, MasterKeyWrapper(MasterKeyRing([MASTER])), now_ms=self.now_ms)
        self.server_keys = StoredServerKeys(self.keys, self.now_ms)
        self.sealer = CookieSealer(self.server_keys, "https://chat.example")

    def now_ms(self) -> UnixMs:
        return UnixMs(self.ms)

    def sealed(self, text: str) -> str:
        written = self.sealer.seal("session", Content(text))
        assert written is not None
        return written

    def opened(self, written: str) -> str | None:
        content = self.sealer.open("session", written, Content)
        return None if content is None else content.text


async def two_gateways(kind: str, folder: Path, schema: str) -> tuple[Gateway, Gateway]:
    made = []
    for _ in range(2):
        database = (
            SqliteKeyDatabase(folder / "keys.db")
            if kind == "sqlite"
            else PostgresKeyDatabase(postgres().dsn, schema=schema)
        )
        await database.open()
        made.append(Gateway(database))
    return made[0], made[1]


@ON_EVERY_STORE
async def test_gateways_that_start_at_once_have_one_key(kind: str, tmp_path: Path) -> None:
    one, other = await two_gateways(kind, tmp_path, "server_keys_start")
    with pytest.raises(Unavailable):
        one.server_keys.writing()
    await asyncio.gather(one.server_keys.load(), other.server_keys.load())
    assert one.server_keys.writing() == other.server_keys.writing()
    assert other.opened(one.sealed("ana")) == "ana" and one.opened(other.sealed("ben")) == "ben"
    await one.database.close()
    await other.database.close()


@ON_EVERY_STORE
async def test_nobody_is_signed_out_while_keys_rotate(kind: str, tmp_path: Path) -> None:
    """A cookie under a key that one gateway has just made was unknown at the others for ten seconds."""
    one, other = await two_gateways(kind, tmp_path, "server_keys_rotate")
    await one.server_keys.load()
    await other.server_keys.load()
    one.ms = other.ms = NOW + EVERYWHERE_MS
    before = one.sealed("before")
    new = await one.keys.rotate(SIGN_IN)
    assert other.opened(one.sealed("just now")) == "just now"  # which has not read the keys again
    await other.keys.refresh()
    one.ms = other.ms = NOW + 2 * EVERYWHERE_MS
    assert one.server_keys.writing() == (new.id, new.secret)
    assert other.opened(one.sealed("later")) == "later" and other.opened(before) == "before"
    await one.database.close()
    await other.database.close()


async def a_plain_journal(folder: Path) -> None:
    store = await SqliteBed(folder).open()
    for name in ("a", "b"):
        fields: dict[str, Any] = {
            "head": patch(title=f"title {name}"),
            "commands": (a_command(1),),
            "snapshot": Snapshot(5, b"folded"),
        }
        await a_log(store.journal, name, 250, **fields)
    await store.close()


def parts(store: object) -> tuple[SqliteDatabase, SealingCodec]:
    assert isinstance(store, SqliteStore) and isinstance(store.database.codec, SealingCodec)
    return store.database, store.database.codec


async def key_ids(database: SqliteDatabase) -> set[str]:
    union = " UNION ".join(f"SELECT key_id FROM {name}" for name in ("events", "snapshots"))
    return {each for (each,) in await database.rows(f"{union} UNION SELECT key_id FROM heads WHERE tenant <> ''")}


async def test_plain_rows_are_encrypted_and_read_as_before(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)
    before = await store.journal.load(key("a"), now_ms=NOW)
    measures = Metrics()
    sweep = Reencryption(database, codec, now_ms=lambda: NOW, metrics=measures, settle_s=0)
    assert await sweep.sweep() and await sweep.sweep()
    (place,) = await sweep.status()
    assert place.done_at is not None and place.changed == place.plain == 2 * (250 + 3)
    assert measures.counter("journal_reencrypted_rows", "").total == place.changed
    assert await key_ids(database) == {place.key_id}
    assert await store.journal.load(key("a"), now_ms=NOW) == before
    await store.close()
    for each in (await SqliteBed(tmp_path, sealed=True).open(),):  # written anew: nothing of it is left in the file
        await each.close()
    assert not any(b"title" in file.read_bytes() for file in (tmp_path / "data").glob("journal.db*"))


async def test_a_sweep_that_ended_anywhere_goes_on_from_there(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    pages = 0
    while True:
        store = await SqliteBed(tmp_path, sealed=True).open()
        sweep = Reencryption(*parts(store), now_ms=lambda: NOW, settle_s=0)
        finished = await sweep.step(ACME)  # and the process ends
        await store.close()
        if finished:
            break
        pages += 1
    assert 8 <= pages < 20
    store = await SqliteBed(tmp_path, sealed=True).open()
    assert len(await key_ids(parts(store)[0])) == 1
    loaded = await store.journal.load(key("b"), now_ms=NOW)
    assert loaded is not None and loaded.head.title == "title b" and loaded.snapshot == Snapshot(5, b"folded")
    await store.close()


async def test_a_new_key_is_swept_for_when_every_process_has_it(tmp_path: Path) -> None:
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)
    await a_log(store.journal, "a", 3)
    now = int(NOW)
    sweep = Reencryption(database, codec, now_ms=lambda: UnixMs(now), settle_s=30)
    assert not await sweep.sweep()
    now += 30_000
    assert await sweep.sweep()
    await codec.keys.rotate(ACME)
    assert await sweep.step(ACME) is False  # the clock of the keys stands still
    assert await sweep.sweep()
    assert await key_ids(database) == {(await codec.keys.writing(ACME)).id}
    await store.close()


async def test_who_stops_it_stops_it_everywhere_and_rows_that_open_no_more_are_left(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)
    sweep = Reencryption(database, codec, now_ms=lambda: NOW, settle_s=0)
    await Reencryption(database, codec, now_ms=lambda: NOW).stop(True)
    assert await sweep.stopped() and not await sweep.sweep() and await sweep.status() == []
    await sweep.stop(False)
    await database.rows("SELECT 1")
    damaged = "UPDATE events SET key_id = 'gone' WHERE session = 'a' AND \"offset\" = 9"
    async with database.reader() as reader:
        await reader.execute_fetchall("PRAGMA query_only = OFF")
        await reader.execute_fetchall(damaged)
    assert await sweep.sweep()
    assert "gone" in await key_ids(database)
    await store.close()


async def test_a_sweep_that_seals_ends_with_keys_that_refuse_plain_rows(tmp_path: Path) -> None:
    await a_plain_journal(tmp_path)
    store = await SqliteBed(tmp_path, sealed=True).open()
    database, codec = parts(store)

    def refused() -> bool:
        ring = codec.keys.ring(ACME)
        return ring is not None and ring.refuses_plain

    assert await Reencryption(database, codec, now_ms=lambda: NOW, settle_s=0).sweep() and not refused()
    sweep = Reencryption(database, codec, now_ms=lambda: NOW, settle_s=0, seals=True)
    await sweep.step(ACME)
    assert not refused()  # only when it has seen all, once more
    assert await sweep.sweep() and refused() and await sweep.step(ACME) is True
    await codec.keys.accept_plain()
    assert await sweep.step(ACME) is False and await sweep.sweep() and refused()
    await store.close()


OTHER = TenantId("globex")


async def a_database(folder: Path) -> SqliteKeyDatabase:
    database = SqliteKeyDatabase(folder / "keys.db")
    await database.open()
    return database


def keys_on(database: SqliteKeyDatabase, *masters: MasterKey) -> TenantKeys:
    return TenantKeys(database, MasterKeyWrapper(MasterKeyRing(masters or [MASTER])), now_ms=lambda: NOW)


async def test_a_tenant_has_one_key_that_stays_until_it_is_rotated(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    keys = keys_on(database)
    assert not await any_tenant_key(database)
    first = await keys.writing(ACME)
    assert await keys.writing(ACME) == first and first.secret.hex() not in repr(first)
    assert (await keys.writing(OTHER)).secret != first.secret and await any_tenant_key(database)
    second = await keys.rotate(ACME)
    assert second.seq == first.seq + 1 and await keys.writing(ACME) == second
    again = keys_on(database)
    await again.load(ACME, first.id)
    ring = again.ring(ACME)
    assert ring is not None and ring.by_id == {first.id: first, second.id: second} and ring.writes == second
    assert await keys.tenants() == [ACME, OTHER] and await keys.counts(ACME) == (2, 0)
    assert first.secret not in (tmp_path / "keys.db").read_bytes()
    await database.close()
    with pytest.raises(Unavailable):
        await keys_on(database).writing(ACME)


class CountedDatabase(SqliteKeyDatabase):
    calls = 0

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        self.calls += 1
        return await super().rows(statement, *values)


async def test_many_sessions_that_start_at_once_make_one_key_and_share_a_read(tmp_path: Path) -> None:
    database = CountedDatabase(tmp_path / "keys.db")
    await database.open()
    keys = keys_on(database)
    made = await asyncio.gather(*(keys.writing(ACME) for _ in range(50)))
    assert len(set(map(str, made))) == 1 and await keys.counts(ACME) == (1, 0)
    database.calls = 0
    again = keys_on(database)
    await asyncio.gather(*(again.load(ACME, made[0].id) for _ in range(50)))
    assert database.calls == 2  # the first one reads at once, the others behind it read together
    await database.close()


async def test_another_process_sees_what_was_rotated_and_destroyed(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    one, two = keys_on(database), keys_on(database)
    first = await one.writing(ACME)
    assert await two.writing(ACME) == first
    heard: list[TenantId] = []
    two.listen(heard.append)
    second = await one.rotate(ACME)
    assert await two.writing(ACME) == first and heard == []
    await two.refresh()
    assert await two.writing(ACME) == second and heard == [ACME]
    assert await one.destroy(ACME) == 2 and await one.destroy(ACME) == 0
    await two.refresh()
    with pytest.raises(Internal):
        await two.load(ACME, first.id)
    third = await two.writing(ACME)
    assert third.id not in (first.id, second.id) and await two.counts(ACME) == (1, 2)
    await database.close()


async def test_a_stranger_with_another_master_makes_no_key_of_its_own(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    stranger = keys_on(database, MasterKey(bytes(32)))
    assert await stranger.readable()
    await keys_on(database).writing(ACME)
    assert not await stranger.readable() and await keys_on(database).readable()
    with pytest.raises(Internal):
        await stranger.writing(ACME)
    assert await stranger.rewrap() == (0, 1)
    await database.close()


async def test_rows_that_were_exchanged_unwrap_to_nothing(tmp_path: Path) -> None:
    database = await a_database(tmp_path)
    await keys_on(database).writing(ACME)
    await keys_on(database).writing(OTHER)
    await database.rows(
        "UPDATE {tenant_keys} SET wrapped = (SELECT wrapped FROM {tenant_keys} WHERE tenant = 'globex')"
    )
    with pytest.raises(Internal):
        await keys_on(database).writing(ACME)
    await database.close()


async def test_a_master_is_replaced_while_servers_run(tmp_path: Path) -> None:
    database, file = await a_database(tmp_path), tmp_path / "master.key"
    server = TenantKeys(database, MasterKeyWrapper(read_master_keys(file, make=True)), now_ms=lambda: NOW)
    other = TenantKeys(database, MasterKeyWrapper(read_master_keys(file)), now_ms=lambda: NOW)
    key = await server.writing(ACME)
    added = add_master_key(file)
    assert await server.rewrap() == (1, 0) and await server.rewrap() == (0, 0)
    assert await other.writing(ACME) == key  # it reads the file again
    assert drop_older_master_keys(file) == 1
    last = TenantKeys(database, MasterKeyWrapper(read_master_keys(file)), now_ms=lambda: NOW)
    assert await last.writing(ACME) == key
    assert {row[0] for row in await database.rows("SELECT wrapper FROM {tenant_keys}")} == {added.id}
    await database.close()


async def test_keys_that_refuse_plain_rows_do_so_everywhere_until_that_is_taken_back(tmp_path: Path) -> None:
    database, file = await a_database(tmp_path), tmp_path / "master.key"
    one, two = (
        TenantKeys(database, MasterKeyWrapper(read_master_keys(file, make=True)), now_ms=lambda: NOW) for _ in range(2)
    )

    async def refuses(keys: TenantKeys, tenant: TenantId = ACME) -> bool:
        await keys.refresh()
        await keys.writing(tenant)
        ring = keys.ring(tenant)
        assert ring is not None
        return ring.refuses_plain

    first = await one.writing(ACME)
    assert not await refuses(two)
    await one.refuse_plain(ACME)
    assert await refuses(one) and await refuses(two) and not await refuses(one, OTHER)
    assert (await two.writing(ACME)).secret == first.secret
    await two.rotate(ACME)
    add_master_key(file)
    assert await one.rewrap() == (3, 0)
    drop_older_master_keys(file)
    again = TenantKeys(database, MasterKeyWrapper(read_master_keys(file)), now_ms=lambda: NOW)
    assert await again.readable() and await refuses(again)
    await database.rows("DELETE FROM {tenant_keys} WHERE tenant = $1 AND seq = 1", ACME)
    assert await refuses(again)  # each key says so
    await again.accept_plain()
    assert not await refuses(again) and not await refuses(one)
    await database.close()


@pytest.fixture
def service() -> Iterator[tuple[TransitServer, str]]:
    server = TransitServer()
    with server.running() as url:
        yield server, url


async def test_a_secret_comes_back_for_what_it_was_wrapped_for(service: tuple[TransitServer, str]) -> None:
    wrapper = TransitWrapper(service[1], token=TOKEN)
    wrapped = await wrapper.wrap(b"secret", b"acme")
    assert wrapped.wrapper == "vault:v1" == await wrapper.current() and b"secret" not in wrapped.data
    assert await wrapper.unwrap(wrapped, b"acme") == b"secret"
    assert await wrapper.unwrap(wrapped, b"globex") is None
    assert await wrapper.unwrap(WrappedSecret("vault:v1", b"vault:v1:eHh4"), b"acme") is None
    assert await wrapper.unwrap(WrappedSecret("x", b"\xff"), b"acme") is None


async def test_a_rotated_key_rewraps_and_older_versions_open(service: tuple[TransitServer, str]) -> None:
    server, url = service
    wrapper = TransitWrapper(url, token=TOKEN)
    old = await wrapper.wrap(b"secret", b"acme")
    server.rotate()
    assert await wrapper.current() == "vault:v2"
    new = await wrapper.rewrap(old, b"acme")
    assert new is not None and new.wrapper == "vault:v2"
    assert await wrapper.unwrap(new, b"acme") == await wrapper.unwrap(old, b"acme") == b"secret"
    assert await wrapper.rewrap(WrappedSecret("vault:v1", b"vault:v1:eHh4"), b"acme") is None


async def test_the_token_is_read_again_for_each_call(service: tuple[TransitServer, str], tmp_path: Path) -> None:
    server, url = service
    file = tmp_path / "token"
    file.write_text("old\n")
    wrapper = TransitWrapper(url, token_file=str(file))
    with pytest.raises(Unavailable, match="403"):
        await wrapper.wrap(b"secret", b"acme")
    file.write_text(f"{server.token}\n")
    assert (await wrapper.wrap(b"secret", b"acme")).wrapper == "vault:v1"
    file.unlink()
    with pytest.raises(Unavailable):
        await wrapper.wrap(b"secret", b"acme")


@pytest.mark.parametrize(
    "url",
    ["", "vault.example/transit/sessile", "https://vault.example", "https://vault.example/sessile", "ftp://x/a/b"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        TransitWrapper(url, token=TOKEN)


def test_keys_go_over_https_only_and_need_a_token(tmp_path: Path) -> None:
    for settings in ({"url": "http://vault.example/transit/sessile", "token": TOKEN},):
        with pytest.raises(BadInput):
            TransitWrapper(**settings)
    with pytest.raises(BadInput):
        TransitWrapper("https://vault.example/transit/sessile")
    with pytest.raises(BadInput):
        TransitWrapper("https://vault.example/transit/sessile", token=TOKEN, authority=str(tmp_path / "missing"))
    TransitWrapper("https://vault.example/transit/sessile", token=TOKEN)
