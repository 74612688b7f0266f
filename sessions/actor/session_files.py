"""Lists the files of a session for a call of a code tool. Made of the log alone, so every replica lists the same.

Pure functions of a `State`.
"""

from __future__ import annotations

from typing import Final

from sessions.machine.item_tree import branch
from sessions.machine.state import State
from sessions.model.types import FunctionCallOutput, InputFile, InputImage, ItemId, Message, Tool
from sessions.server_tools import CallFile

FILES_MAX: Final = 512


def session_files(state: State, leaf: ItemId | None, tool: Tool | None) -> tuple[CallFile, ...]:
    """Returns the files that a client gave the tool, then those of the messages and runs on the branch that ends in
    `leaf`, oldest first, the newest `FILES_MAX`. A file that a later run wrote at the same path replaces the earlier
    one."""
    files: dict[str, CallFile] = {}
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
                    place = f"/{file.path}"  # no id begins so
                    files.pop(place, None)
                    files[place] = CallFile(file.file_id, "run", file.path)
    given = [file for file in files.values() if file.origin == "tool"]
    return (*given, *[file for file in files.values() if file.origin != "tool"][-FILES_MAX:])
