"""A journal that Litestream copies: its server is killed under load, and another one goes on with the copy."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.replicated_server import Talks, bring_keys, go_on, logs_in, replicated, resumed_at, run
from tests.support.stores.s3_server import CREDENTIALS, s3_server

ROUNDS = 3


@pytest.fixture
def own() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s") as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "s3"])
async def test_a_killed_server_is_restored_and_its_readers_are_reset(tmp_path: Path, own: Path, place: str) -> None:
    if place == "file":
        await lose_and_restore(tmp_path, own, f"file://{tmp_path}/replica")
    else:
        with s3_server("copies") as address:
            await lose_and_restore(tmp_path, own, address)


async def lose_and_restore(folder: Path, own: Path, url: str) -> None:
    """Rounds on one replica: each server goes on with what the last one's copy had."""
    data = folder / "data-0"
    for number in range(ROUNDS):
        flags = ("--replicate", f"{url}-{number}" if "?" not in url else url.replace("?", f"-{number}?"))
        with replicated(data, own, *flags, environment=CREDENTIALS) as server:
            talks = Talks(server.url, 4)
            await talks.each_had(2)
            looked = run("doctor", "--gateways", server.url)
            assert looked.returncode == 0 and "the copy of its journal has everything" in looked.stdout, looked.stdout
            certain = dict(talks.offsets)
            await asyncio.to_thread(server.sync, data)
            await talks.each_had(min(talks.num_turns) + 2)
            server.kill()
            await talks.ended()
        lost, data = data, folder / f"data-{number + 1}"
        bring_keys(lost, data)
        restored = run("restore", "--from", flags[1], "--data", str(data), environment=CREDENTIALS)
        assert restored.returncode == 0, restored.stderr
        assert sorted(each.name for each in data.iterdir()) == ["journal.db", "keys.db", "master.key"]
        before, after = await logs_in(lost, list(talks.offsets)), await logs_in(data, list(talks.offsets))
        for session, (_, offset) in talks.offsets.items():
            assert len(before[session]) >= offset, "what a reader has seen is durable"
            assert after[session] == before[session][: len(after[session])]
            assert len(after[session]) >= certain[session][1]
        with replicated(data, own) as server:
            for session, (epoch, offset) in talks.offsets.items():
                if offset > len(after[session]):
                    resumed = await resumed_at(server.url, session, epoch, offset)
                    assert resumed["mode"] == "reset" and resumed["reason"] in ("offset_ahead", "epoch_changed")
                await go_on(server.url, session)
                resumed = await resumed_at(server.url, session, epoch, min(offset, len(after[session])))
                assert (resumed["mode"], resumed["reason"]) == ("reset", "epoch_changed")
                assert resumed["epoch"] != epoch


@pytest.mark.slow
def test_what_is_wrong_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "journal.db").touch()
    serve = ("serve", "--engine", "sim", "--port", "0", "--data", str(tmp_path / "new"))
    for words, expected in (
        ((*serve, "--replicate", "ftp://host/x"), "file:///FOLDER"),
        ((*serve, "--replicate", "s3://key:secret@bucket/x"), "never here"),
        ((*serve, "--replicate", f"file://{tmp_path}/r", "--journal", "memory"), "SQLite"),
        (("restore", "--from", f"file://{tmp_path}/r", "--data", str(tmp_path / "data")), "without a journal"),
        (("restore", "--from", f"file://{tmp_path}/r", "--data", str(tmp_path / "other")), "Nothing was restored"),
    ):
        done = run(*words)
        assert done.returncode == 2 and expected in done.stderr, (words, done.stderr)
