"""Folders of code: what becomes a session's, what does not, and when it goes."""

from __future__ import annotations

import os
from pathlib import Path

from inference.tools.code.scratch import IDLE_S, ScratchFile, ScratchFolders
from sessions.model.types import SessionId, SessionKey, TenantId

MINE, OTHER = (SessionKey(TenantId("t"), SessionId(name)) for name in ("mine", "other"))


def folders(tmp_path: Path, now: list[float]) -> ScratchFolders:
    return ScratchFolders(clock=lambda: now[0], parent=str(tmp_path))


def test_a_session_finds_what_it_left_and_nothing_of_others(tmp_path: Path) -> None:
    made = folders(tmp_path, [0.0])
    work = made.new()
    (work / "a").mkdir()
    (work / "a" / "b.txt").write_text("one")
    assert made.keep(work, MINE) == [ScratchFile("a/b.txt", 3)]
    again, foreign = made.new(), made.new()
    made.fill(again, MINE)
    made.fill(foreign, OTHER)
    assert (again / "a" / "b.txt").read_text() == "one" and not any(foreign.iterdir())
    (again / "c").write_text("x")
    assert made.keep(again, MINE) == [ScratchFile("c", 1)], "what is new or changed is named"
    made.close()
    assert not any(tmp_path.iterdir())


def test_links_pipes_and_odd_names_stay_behind(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    made = folders(tmp_path, [0.0])
    work = made.new()
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "folder").symlink_to("/etc")
    os.mkfifo(work / "pipe")
    (work / "new\nline").write_text("x")
    (Path(os.fsdecode(bytes(work) + b"/\xff"))).write_text("x")
    (work / "plain").write_text("x")
    assert made.keep(work, MINE) == [ScratchFile("plain", 1)]
    made.close()


def test_a_folder_without_rights_is_removed(tmp_path: Path) -> None:
    made = folders(tmp_path, [0.0])
    work = made.new()
    (work / "a").mkdir()
    (work / "a" / "b").write_text("x")
    (work / "a").chmod(0)
    made.drop(work)
    assert not work.exists()
    made.close()


def test_what_nobody_uses_goes(tmp_path: Path) -> None:
    now = [0.0]
    made = folders(tmp_path, now)
    for key in (MINE, OTHER):
        work = made.new()
        (work / "a").write_text("x")
        made.keep(work, key)
        now[0] += IDLE_S - 1
    made.expire()
    work = made.new()
    made.fill(work, MINE)
    assert not any(work.iterdir())
    made.fill(work, OTHER)
    assert any(work.iterdir())
    made.close()


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "sessile-code-4194305-x"
    left.mkdir()
    (left / "a").write_text("x")
    made = folders(tmp_path, [0.0])
    assert not left.exists()
    made.close()
