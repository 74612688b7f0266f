"""Files of runs: which go in and which come back, and that nothing is stored twice."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.tools.code.run_files import FilledFolder, FolderBounds, KeptFiles, RunFiles, file_id_of
from inference.tools.code.scratch import (
    DEPTH_MAX,
    ScratchFile,
    ScratchFolders,
    is_path,
    new_file,
    open_plain_file,
    plain_files,
)
from persistence.memory.database import MemoryDatabase
from persistence.sql.files import SqlFiles
from sessions.model.errors import Internal, NotFound, OutcomeUnknown, SessileError, Unavailable
from sessions.model.knowledge.files import FileId, FileQuery, FileQuotas, StoredFile, file_not_found
from sessions.model.types import CallId, Principal, ResponseId, RunFile, SessionId, SessionKey, UnixMs
from sessions.server_tools import CallFile, ToolRequest
from tests.support.stores.file_rows import content_of, uploaded
from tests.support.stores.journals import ACME, NOW

# -- run files
ROOM = FolderBounds(8, 1_000)
numbers = itertools.count()


class FailingFiles(SqlFiles):
    """A store that goes away after `left` more files."""

    left = 1_000
    unknown = 0  # how many outcomes are not told

    async def finish(self, *given: Any) -> Any:
        if not self.left:
            raise Unavailable("journal_unavailable", "It is away.")
        self.left -= 1
        upload = self._uploads[given[0].blob]
        stored = await super().finish(*given)
        if self.unknown:
            self.unknown -= 1
            self._uploads[given[0].blob] = upload  # it may be finished again
            raise OutcomeUnknown("outcome_unknown", "It may be stored.")
        return stored


@pytest.fixture
def store() -> FailingFiles:
    return FailingFiles(MemoryDatabase())


@pytest.fixture
def files(store: FailingFiles) -> RunFiles:
    return RunFiles(store, lambda _: FileQuotas(), lambda: UnixMs(NOW), bytes_max=500)


def request(*given: CallFile, user: str | None = "ü", name: str = "e") -> ToolRequest:
    return ToolRequest(
        key=SessionKey(ACME, SessionId("s")),
        response_id=ResponseId("r"),
        call_id=CallId("c"),
        name="code_interpreter",
        arguments="{}",
        execution_id=name,
        user=user,
        files=given,
    )


def folder_of(tmp_path: Path, **content: str) -> Path:
    folder = tmp_path / f"{next(numbers)}"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    return folder


async def keep(files: RunFiles, folder: Path, **more: Any) -> KeptFiles:
    return await files.keep(folder, request(**more), FilledFolder({}), 100, ROOM)


async def stored(store: SqlFiles) -> dict[str, bytes]:
    found = await store.files(FileQuery(tenant=ACME, anybody=True), UnixMs(NOW))
    return {file.filename: await content_of(store, file) for file in found}


async def test_files_stand_under_safe_names_that_no_two_have(
    files: RunFiles, store: FailingFiles, tmp_path: Path
) -> None:
    names = ["a.csv", "a.csv", "../../etc/passwd", "é" * 250 + ".csv", "", "plots"]
    given = [(await uploaded(store, str(at).encode(), name=name)).id for at, name in enumerate(names)]
    written = [(await uploaded(store, content, name="b")).id for content in (b"x", b"y")]
    runs = CallFile(written[0], "run", "plots/b"), CallFile(written[1], "run", "../b")
    calls = [*(CallFile(each, "message") for each in given), *runs]
    folder = folder_of(tmp_path)
    filled = await files.fill(folder, request(*calls), ROOM._replace(files=9))
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == sorted(filled.files) and len(found) == 7 and filled.missing == ("plots",)
    assert {"a.csv", "a-2.csv", "passwd", "file", "plots/b", "b"} < set(found)
    assert all(path.resolve().is_relative_to(folder) for path in folder.rglob("*"))


async def test_the_newest_go_in_where_not_all_have_room(files: RunFiles, store: FailingFiles, tmp_path: Path) -> None:
    given = [CallFile((await uploaded(store, bytes(400), name=name)).id, "message") for name in "abc"]
    filled = await files.fill(folder_of(tmp_path), request(*given), ROOM)
    assert set(filled.files) == {"b", "c"} and filled.missing == ("a",)
    filled = await files.fill(folder_of(tmp_path), request(*given), FolderBounds(1, 1_000))
    assert set(filled.files) == {"c"} and filled.missing == ("a", "b")
    deep = given[2]._replace(origin="run", name="x/y/c")
    filled = await files.fill(folder_of(tmp_path), request(*given[:2], deep), FolderBounds(3, 1_000))
    assert set(filled.files) == {"x/y/c"} and filled.missing == ("a", "b"), "its folders take room, too"
    given[0] = given[0]._replace(origin="tool")
    filled = await files.fill(folder_of(tmp_path), request(*given), ROOM)
    assert set(filled.files) == {"a", "c"} and filled.missing == ("b",), "what the client gave the tool is first"


async def test_files_of_other_users_and_deleted_ones_are_not_there(
    files: RunFiles, store: FailingFiles, tmp_path: Path
) -> None:
    others = await uploaded(store, b"1", user="o", name="others")
    tenants = await uploaded(store, b"2", user=None, name="tenants")
    given = [CallFile(name, "tool") for name in (others.id, tenants.id, "file-none")]
    assert set((await files.fill(folder_of(tmp_path), request(*given), ROOM)).files) == {"tenants"}
    services = await files.fill(folder_of(tmp_path), request(*given, user=None), ROOM)
    assert set(services.files) == {"others", "tenants"}, "a service sees its tenant's"
    user = Principal(tenant=ACME, key_id="k", user="ü", role="user")
    for name in (others.id, tenants.id, "file-none"):
        with pytest.raises(NotFound):
            await files.check(user, name)


async def test_a_file_that_cannot_be_read_is_missing_and_a_store_that_is_away_is_an_error(
    files: RunFiles, store: FailingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = CallFile((await uploaded(store, b"x", name="a")).id, "tool")
    for error in (file_not_found("f"), Internal("body_unreadable", "It is not what was stored.")):

        async def read(file: StoredFile, error: SessileError = error) -> AsyncIterator[bytes]:
            yield b"half"
            raise error

        monkeypatch.setattr(store, "read", read)
        folder = folder_of(tmp_path)
        filled = await files.fill(folder, request(given), ROOM)
        assert filled.missing == ("a",) and not filled.files and not any(folder.iterdir())
    monkeypatch.setattr(store, "find", _away)
    with pytest.raises(Unavailable):
        await files.fill(folder_of(tmp_path), request(given), ROOM)


async def _away(*_: object) -> None:
    raise Unavailable("journal_unavailable", "It is away.")


async def test_a_call_that_is_made_again_stores_nothing_twice(
    files: RunFiles, store: FailingFiles, tmp_path: Path
) -> None:
    first = await keep(files, folder_of(tmp_path, a="1", b="2"))
    assert await keep(files, folder_of(tmp_path, a="1", b="2")) == first and len(await stored(store)) == 2
    other = await keep(files, folder_of(tmp_path, a="1"), name="other")
    assert other.files[0].file_id != first.files[0].file_id, "another call's file is another file"


@pytest.mark.parametrize("done", range(4))
async def test_after_a_crash_at_any_file_the_next_attempt_names_all_that_is_stored(
    files: RunFiles, store: FailingFiles, tmp_path: Path, done: int
) -> None:
    store.left = done
    crashed = await keep(files, folder_of(tmp_path, a="old", b="old", c="old"))
    assert len(crashed.files) == done and (not crashed.missing or crashed.reason == "they could not be stored")
    store.left = 1_000
    again = await keep(files, folder_of(tmp_path, a="new", b="new"))
    found = await stored(store)
    assert sorted(file.path for file in again.files) == sorted(found) and len(found) == max(done, 2)
    for number, file in enumerate(again.files):
        assert file == RunFile(file_id=file_id_of("e", number), path="abc"[number], size=3)
        assert found[file.path] == (b"old" if number < done else b"new")


async def test_files_of_an_earlier_attempt_have_paths_of_their_own_and_are_never_forgotten(
    files: RunFiles, store: FailingFiles, tmp_path: Path
) -> None:
    deep = folder_of(tmp_path)
    for name in ("x", "y"):
        (deep / name).mkdir()
        (deep / name / "a").write_text(name)
    first = await keep(files, deep)
    assert [file.path for file in first.files] == ["x/a", "y/a"]
    again = await keep(files, folder_of(tmp_path, A="1", a="2"))
    assert [file.path for file in again.files] == ["a-2", "a"]
    assert [file.file_id for file in again.files] == [file.file_id for file in first.files]
    nothing = await keep(files, folder_of(tmp_path))
    assert [(file.path, file.file_id) for file in nothing.files] == [
        (path, file.file_id) for path, file in zip(("a", "a-2"), first.files, strict=True)
    ]


async def test_an_outcome_that_is_not_known_is_asked_for_again(
    files: RunFiles, store: FailingFiles, tmp_path: Path
) -> None:
    store.unknown = 1
    kept = await keep(files, folder_of(tmp_path, a="1", b="2"))
    assert [file.path for file in kept.files] == ["a", "b"] and await stored(store) == {"a": b"1", "b": b"2"}


async def test_attempts_at_the_same_time_agree(files: RunFiles, store: FailingFiles, tmp_path: Path) -> None:
    folders = [folder_of(tmp_path, **dict.fromkeys("abc", str(at))) for at in range(4)]
    kept = await asyncio.gather(*(keep(files, folder) for folder in folders))
    assert len({each.files for each in kept}) == 1 and len(await stored(store)) == 3


async def test_files_that_shrink_grow_or_become_links_cost_what_was_seen(
    files: RunFiles, store: FailingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, grows="1", shrinks="22", turns="3")
    begin = store.begin

    async def meanwhile(*given: Any) -> Any:
        (folder / "grows").write_text("1" * 10_000)
        (folder / "shrinks").write_text("")
        (folder / "turns").unlink(missing_ok=True)
        (folder / "turns").symlink_to("/etc/passwd")
        return await begin(*given)

    monkeypatch.setattr(store, "begin", meanwhile)
    kept = await keep(files, folder)
    assert await stored(store) == {"grows": b"1", "shrinks": b""} and kept.missing == ("turns",)
    file = await store.find(ACME, FileId(kept.files[1].file_id), UnixMs(NOW))
    assert file is not None and file.size == 0


async def test_giants_are_not_read(files: RunFiles, store: FailingFiles, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, small="x")
    with (folder / "giant").open("wb") as giant:
        giant.truncate(2**40)
    kept = await keep(files, folder)
    assert [file.path for file in kept.files] == ["small"] and kept.missing == ("giant",)
    assert "at most" in kept.reason


# -- scratch
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def test_links_pipes_and_odd_names_stay_behind(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    (tmp_path / "other").write_text("hidden")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    os.link(tmp_path / "secret", folder / "hard")
    (folder / "new\nline").write_text("x")
    (Path(os.fsdecode(bytes(folder) + b"/\xff"))).write_text("x")
    (folder / "a").mkdir()
    (folder / "a" / "plain").write_text("x")
    assert plain_files(folder, 100) == [ScratchFile("a/plain", 1), ScratchFile("hard", 6)]
    for path in ("link", "folder/secret", "pipe", "hard", "a", "../other", "a/../../other", "none"):
        assert open_plain_file(folder, path) is None, path
    plain = open_plain_file(folder, "a/plain")
    assert plain is not None
    with plain:
        assert plain.read() == b"x"


def test_no_more_entries_are_looked_at_than_permitted(folder: Path) -> None:
    for name in range(50):
        (folder / f"{name:02}").write_text("x")
    assert len(plain_files(folder, 20)) == 20
    deep = folder / "/".join("d" * (DEPTH_MAX + 3))
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    assert len(plain_files(folder, 100)) == 50


def test_paths_that_leave_the_folder_are_none(folder: Path) -> None:
    assert is_path("a.txt") and is_path("a/b/.hidden")
    for path in ("", "/etc/passwd", "a/../b", "..", "a//b", "./a", "a/", "x\0y", "n" * 300, "/".join("d" * 30)):
        assert not is_path(path), path
    with new_file(folder, "a/b.txt") as file:
        file.write(b"x")
    for path in ("a/b.txt", "a", "a/b.txt/c"):
        with pytest.raises((FileExistsError, IsADirectoryError, NotADirectoryError)):
            new_file(folder, path)


def test_a_folder_without_rights_is_removed(tmp_path: Path) -> None:
    made = ScratchFolders(parent=str(tmp_path))
    work = made.new()
    (work / "a").mkdir()
    (work / "a" / "b").write_text("x")
    (work / "a").chmod(0)
    made.drop(work)
    assert not work.exists()
    made.close()
    assert not any(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "sessile-code-4194305-x"
    left.mkdir()
    (left / "a").write_text("x")
    made = ScratchFolders(parent=str(tmp_path))
    assert not left.exists()
    made.close()
