"""Files of a session for a call: in the order of the branch, each once, the newest version of what runs wrote."""

from __future__ import annotations

from typing import Any

import msgspec

from sessions.actor.session_files import session_files
from sessions.machine.scrubbing import files_line, with_output
from sessions.machine.state import State, apply, empty
from sessions.model import events as ev
from sessions.model.types import (
    CallId,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    ItemId,
    Message,
    RunFile,
    Tool,
    UnixMs,
)
from sessions.server_tools import CallFile
from tests.support.doors.transport import key_of


def user(name: str, parent: str | None, *parts: Any) -> Message:
    return Message(
        id=ItemId(name),
        parent_id=None if parent is None else ItemId(parent),
        role="user",
        content=parts,
        status="completed",
        created_at=UnixMs(1),
    )


def output(name: str, parent: str, text: str = "", **files: str) -> FunctionCallOutput:
    written = tuple(RunFile(file_id=file_id, path=path, size=1) for path, file_id in files.items())
    return FunctionCallOutput(
        id=ItemId(name),
        parent_id=ItemId(parent),
        call_id=CallId(name),
        output=text or " ".join(files),
        created_at=UnixMs(1),
        files=written,
    )


def state_of(*items: Item) -> State:
    state = empty(key_of("s"), user=None)
    for offset, item in enumerate(items, 1):
        apply(state, ev.Record(offset, UnixMs(1), ev.ItemCreated(item=item)))
    return state


def test_files_of_the_branch_in_order_each_once() -> None:
    state = state_of(
        user("1", None, InputText("look"), InputFile(file_id="f1", filename="a.csv", text="1")),
        user("2", "1", InputFile(filename="bytes.txt", text="x"), InputImage(file_id="f2", sha256="0")),
        output("3", "2", plot="w1", table="w2"),
        user("4", "3", InputFile(file_id="f1", filename="a.csv", text="1")),
        output("5", "4", plot="w3"),
        output("other", "2", secret="w4"),
    )
    tool = Tool(name="code", server=True, file_ids=("f9", "f1"))
    assert session_files(state, ItemId("5"), tool) == (
        CallFile("f9", "tool"),
        CallFile("f1", "tool"),
        CallFile("f2", "message"),
        CallFile("w2", "run", "table"),
        CallFile("w3", "run", "plot"),
    )
    assert session_files(state, ItemId("1"), None) == (CallFile("f1", "message", "a.csv"),)
    assert session_files(state, None, None) == ()


def test_a_runs_file_replaces_the_one_that_it_was_made_from() -> None:
    def made(file_id: str, path: str, source: str) -> RunFile:
        return RunFile(file_id=file_id, path=path, size=1, source=source)

    def state(*written: tuple[RunFile, ...]) -> State:
        outputs = [
            msgspec.structs.replace(output(f"{at + 1}", f"{at}"), files=files) for at, files in enumerate(written, 1)
        ]
        return state_of(user("1", None, InputText("go")), *outputs)

    def files(state: State, *given: str) -> list[CallFile]:
        tool = Tool(name="code", server=True, file_ids=given)
        return [file for file in session_files(state, state.newest, tool) if file.origin == "run"]

    once = made("w1", "a", "u1")
    other = state((once,), (made("w2", "a", "u2"),))
    assert files(other) == [CallFile("w1", "run", "a", "u1"), CallFile("w2", "run", "a", "u2")]
    moved = state((once,), (made("w2", "a-2", "w1"),), (made("w3", "a-2", "w2"),))
    assert files(moved) == [CallFile("w3", "run", "a-2", "u1")], "over any number of runs, wherever it stood"
    at_once = state((once,), (made("w2", "a", "w1"),), (made("w3", "a", "w1"),))
    assert files(at_once) == [CallFile("w3", "run", "a", "u1")], "the last of those made at the same time"
    named = state((once,), (made("w2", "a", "w1"),))
    assert files(named, "w1") == [CallFile("w2", "run", "a", "w1")], "a client may give a run's file"


def test_a_file_that_an_output_names_no_more_is_none_of_its() -> None:
    item = output("1", "0", "[files: a.txt (1 bytes), b.txt (1 bytes)]", **{"a.txt": "w1", "b.txt": "w2"})
    assert with_output(item, "[files: ..., b.txt (1 bytes)]").files == (RunFile(file_id="w2", path="b.txt", size=1),)
    for text in (
        "",
        "b.txt (1 bytes)",
        "[files: x/b.txt (1 bytes), b.txt.gz (1 bytes), a.txt (12 bytes)]",
        "[removed]",
    ):
        assert not isinstance(with_output(item, text).files, tuple), text
    printed = f"a, b\n{files_line(item.files or ())}\n[files that are not kept: c; no room]"
    assert with_output(item, printed).files == item.files
