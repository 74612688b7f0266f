"""Lists the files of a session for a call of a code tool. Made of the log alone, so every replica lists the same.

Pure functions of a `State`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sessions.machine.item_tree import branch
from sessions.machine.state import State
from sessions.model.types import FunctionCallOutput, InputFile, InputImage, ItemId, Message, Tool
from sessions.server_tools import CallFile

FILES_MAX: Final = 512


class _Place(NamedTuple):
    """The path of a run's file, and the id of the upload that runs have made it from; "" if they made it anew."""

    path: str
    upload: str


def session_files(state: State, leaf: ItemId | None, tool: Tool | None) -> tuple[CallFile, ...]:
    """Returns the files that a client gave the tool, then those of the messages and runs on the branch that ends in
    `leaf`, oldest first, the newest `FILES_MAX`. A file of a run replaces the run's file that it was made from, and one
    at the same path that was made of the same upload or, like itself, of none."""
    files: dict[str | _Place, CallFile] = {}
    places: dict[str, _Place] = {}
    for file_id in tool.file_ids if tool is not None and isinstance(tool.file_ids, tuple) else ():
        files[file_id] = CallFile(file_id, "tool")
    for item in branch(state, leaf):
        match item:
            case Message():
                for part in item.content:
                    if isinstance(part, InputFile | InputImage) and part.file_id is not None:
                        name = part.filename if isinstance(part, InputFile) else ""
                        files.setdefault(part.file_id, CallFile(part.file_id, "message", name))
            case FunctionCallOutput(files=tuple() as written):
                for file in written:
                    source = file.source if isinstance(file.source, str) else ""
                    before = places.get(source)
                    upload = source if before is None or source in files else before.upload
                    place = places[file.file_id] = _Place(file.path, upload)
                    if before is not None and before in files and files[before].file_id == source:
                        del files[before]
                    files.pop(place, None)
                    files[place] = CallFile(file.file_id, "run", *place)
    given = [file for file in files.values() if file.origin == "tool"]
    return (*given, *[file for file in files.values() if file.origin != "tool"][-FILES_MAX:])
