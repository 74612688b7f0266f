"""The audit log, export and erasure as an operator meets them: real processes, commands, a server that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from persistence import connect_store
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.library import sqlite3
from persistence.sqlite.store import SqliteStore
from sessions.governance.audit_trim import trim
from sessions.governance.audit_verify import verify
from sessions.model.api_keys import ApiKeyRequest
from sessions.model.audit import Audited
from sessions.model.types import UnixMs
from tests.support.doors.assembly import wall_ms
from tests.support.stores.journals import ACME, NOW, key
from transport.auth.api_key_cache import ApiKeyCache
from transport.cli.settings import Settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
POLICY = '[policies.default.input]\nphrases = { deny = ["project nightjar"] }\n'


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "app.py", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "app.py", "serve", "--engine", "sim", "--port", "0", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"ready: (\S+)/", server.stdout.readline())
            assert found
            yield server, found[1]
        finally:
            server.kill()


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode in (0, 3), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def keys_of_acme(folder: Path) -> tuple[str, str]:
    """An operator's key and Mary's, made while no server runs."""
    async with connect_store(Settings(data=str(folder)), wall_ms) as store:
        ring = ApiKeyCache(store.api_keys, now_ms=wall_ms, clock=asyncio.get_running_loop().time)
        _, boss = await ring.create(ApiKeyRequest(tenant="acme", role="operator"))
        _, mary = await ring.create(ApiKeyRequest(tenant="acme", user="mary"))
        return boss, mary


def test_what_happened_is_told_after_a_kill_and_a_person_is_erased(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    data = ("--data", str(folder))
    (tmp_path / "p.toml").write_text(POLICY)
    flags = ("--policy", str(tmp_path / "p.toml"), "--auth", "keys", *data)
    boss, mary = asyncio.run(keys_of_acme(folder))
    asked, administers = ({"authorization": f"Bearer {each}"} for each in (mary, boss))
    with serving(*flags) as (server, url):
        for text, status in (("hello", 200), ("about project nightjar", 400)):
            body = {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
            assert httpx.post(f"{url}/v1/chat/completions", headers=asked, json=body, timeout=60).status_code == status
        through = lines(run("audit", "list", "--json", "--url", url, SESSILE_API_KEY=boss))
        assert [row["action"] for row in through] == ["key.created", "key.created", "verdict"]
        server.send_signal(signal.SIGKILL)
        server.wait(timeout=60)
    found = through[2]["findings"][0]
    assert found["action"] == "block" and len(found["text_hmac"]) == 64 and found["policy"]
    assert through[2]["detail"] == {"direction": "input", "outcome": "content_filter"}
    assert "nightjar" not in json.dumps(through) and "mary" not in json.dumps(through)
    whole = run("audit", "verify", *data)
    assert whole.returncode == 0 and "acme: 3 rows, all as they were written" in whole.stdout
    assert "(installation): 1 rows" in whole.stdout, "the policy that was loaded"
    asked_for = run("users", "erase", "mary", "--tenant", "acme", "--json", *data)
    assert asked_for.returncode == 3 and lines(asked_for)[0]["status"] == "under_way"
    with serving(*flags) as (_, url):
        done = httpx.post(f"{url}/v1/users/mary/erase", headers=administers, timeout=60)
        assert done.status_code == 200 and done.json()["status"] == "done", done.text
        assert httpx.get(f"{url}/v1/sessions", headers=asked, timeout=60).status_code == 401, "her key is gone too"
    with closing(sqlite3.connect(folder / "journal.db")) as file:
        file.execute("DROP TRIGGER audit_is_not_changed")
        file.execute("UPDATE audit SET at = at + 1 WHERE tenant = 'acme' AND seq = 2")
        file.commit()
    broken = run("audit", "verify", *data)
    assert broken.returncode == 1 and "acme: row 2 was changed" in broken.stdout


async def trimmed_log(folder: Path) -> str:
    """A log whose three oldest rows are gone, made while no server runs; an operator's key to it."""
    async with connect_store(Settings(data=str(folder)), wall_ms) as store:
        ring = ApiKeyCache(store.api_keys, now_ms=wall_ms, clock=asyncio.get_running_loop().time)
        audit = store.audit
        old = [Audited(action="verdict", at=UnixMs(NOW + n), detail={"n": n}) for n in range(3)]
        await audit.record(ACME, old)
        _, boss = await ring.create(ApiKeyRequest(tenant="acme", role="operator"))
        assert await trim(audit, ACME, before=UnixMs(NOW + 3), now=wall_ms()) == 3
        return boss


def test_a_trimmed_log_is_shown_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    data = ("--data", str(folder))
    boss = asyncio.run(trimmed_log(folder))
    whole = run("audit", "verify", "--tenant", "acme", *data)
    assert whole.returncode == 0, whole.stderr
    told = "; 3 before them were trimmed, up to 2025-06-15T15:06:40+00:00; anchor 5:"
    assert f"acme: 2 rows, all as they were written{told}" in whole.stdout
    rows = lines(run("audit", "list", "--json", "--tenant", "acme", *data))
    assert [(row["seq"], row["action"]) for row in rows] == [(4, "key.created"), (5, "audit.trimmed")]
    with serving("--auth", "keys", "--audit-days", "30", *data) as (_, url):
        through = lines(run("audit", "list", "--json", "--last", "1", "--url", url, SESSILE_API_KEY=boss))
        assert [row["seq"] for row in through] == [5]
        asked = run("audit", "verify", "--anchor", f"2:{'0' * 64}", "--url", url, SESSILE_API_KEY=boss)
    assert asked.returncode == 0 and "1 of the anchors given are of trimmed rows and prove nothing" in asked.stdout
    with closing(sqlite3.connect(folder / "journal.db")) as file:
        file.execute("DELETE FROM audit_floors")
        file.commit()
    broken = run("audit", "verify", "--tenant", "acme", *data)
    assert broken.returncode == 1 and "acme: row 1 is missing; row 4 follows" in broken.stdout
    refused = run("serve", "--engine", "sim", "--port", "0", "--audit-days", "0.5", *data)
    assert refused.returncode != 0 and "audit_days = 0.5" in refused.stderr


WRITING = """
import asyncio, sys
from pathlib import Path
from sessions.model.audit import Audited
import msgspec
from tests.support.stores.journals import NOW, an_append, grant, key
from tests.support.stores.stores import opened

async def one(journal, name):
    found = await journal.head(key(name))
    head = await grant(journal, key(name), found.fence if found else None)
    top = head.top
    while True:
        row = Audited(action="verdict", at=NOW, session=name, detail={"offset": top + 1})
        await journal.append(an_append(msgspec.structs.replace(head, top=top), 1, audit=(row,)))
        top += 1
        print(top, flush=True)

async def main():
    async with opened(Path(sys.argv[1]), checkpoint_pages=20) as journal:
        await asyncio.gather(*(one(journal, f"s{n}") for n in range(8)))

asyncio.run(main())
"""


async def test_a_kill_never_parts_an_append_from_its_row(tmp_path: Path) -> None:
    for round_ in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITING, str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        for _ in range(150 + 83 * round_):
            assert await process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        await process.stdout.read()
        await process.wait()
        store = SqliteStore(SqliteDatabase(tmp_path))
        await store.open()
        try:
            tops = [head.top if (head := await store.journal.head(key(f"s{n}"))) else 0 for n in range(8)]
            found = await verify(store.audit, ACME)
            assert found.intact and found.rows == sum(tops) > 0
        finally:
            await store.close()


def test_commands_on_the_folder_of_a_running_server_ask_that_server(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    made = run("keys", "create", "--tenant", "acme", "--role", "operator", *data, "--json")
    key, ours = json.loads(made.stdout)["key"], ("--tenant", "acme")
    with serving(*data, "--auth", "keys") as (server, url):
        for words in (
            ("audit", "verify"),
            ("audit", "list", *ours),
            ("keys", "list"),
            ("users", "export", "mary", *ours),
            ("users", "erase", "mary", *ours),
            ("encryption", "status"),
        ):
            done = run(*words, *data, SESSILE_API_KEY=key)
            assert done.returncode == 0 and done.stdout, f"{words}: {done.stderr}"
            assert f"Through the server that runs on {data[1]}: {url}" in done.stderr
        without = run("keys", "list", *data)
        assert without.returncode == 2 and "SESSILE_API_KEY" in without.stderr and url in without.stderr
        second = run("serve", "--engine", "sim", "--port", "0", *data)
        assert f"pid {server.pid}, a server at {url}" in second.stderr
        reads_itself = run("usage", "reconcile", *data)
        assert reads_itself.returncode == 2 and url in reads_itself.stderr
    after = run("keys", "list", *data)
    assert after.returncode == 0 and "Through" not in after.stderr, "a server that has gone leaves no address behind"
