"""Carries out calls of code tools on CPython: takes a sandbox, gives it the session's files, says what came of it.

A run has no effect outside of its folder, so that it may be made again under the same key, on the files that the first
found. Files that it leaves are stored under ids of the call, so that no attempt stores them twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from inference.tools.code.run_files import FilledFolder, FolderBounds, KeptFiles, RunFiles
from inference.tools.code.sandbox_pool import Kind, Sandbox, SandboxPool, SandboxResult, SandboxUnavailable, find_kind
from inference.tools.code.scratch import plain_files
from inference.tools.tools_file import CodeTool
from sessions.machine.scrubbing import files_line
from sessions.model.errors import Unavailable
from sessions.server_tools import Outcome, ToolRequest, ToolResult

log = structlog.get_logger(__name__)

FILES_NAMED_MAX: Final = 50
_STOPPED: Final = {
    "time": "it took longer than {timeout_s:g} s",
    "cpu": "it used more than {cpu_s:g} s of CPU",
    "memory": "it used more than {memory_mb} MB of memory",
    "processes": "it had too many processes or threads",
    "disk": "it wrote more than {disk_mb} MB, or more than {files} files",
}


class CodeTools:
    """The code tools of one replica. Sandboxes start with the first tool that needs them."""

    def __init__(self, files: RunFiles | None = None, *, find: Callable[[], Kind] = find_kind) -> None:
        """`files`: those of sessions; None: no files go in, and none are kept."""
        self.files = files
        self._find = find
        self._reason = ""
        self._pool: SandboxPool | None = None

    def missing(self) -> str:
        """Returns why code cannot be run here; "" if it can."""
        self._begun()
        return self._reason

    def _begun(self) -> SandboxPool | None:
        if self._pool is None and not self._reason:
            try:
                kind = self._find()
                self._pool = SandboxPool(kind)
                log.info("code_sandbox_chosen", kind=kind)
            except (SandboxUnavailable, OSError) as error:
                self._reason = str(error)
        return self._pool

    async def aclose(self) -> None:
        """Removes every sandbox and every folder."""
        if self._pool is not None:
            await self._pool.close()

    async def call(self, request: ToolRequest, tool: CodeTool) -> ToolResult:
        """Runs the code of a call within the tool's bounds."""
        code = json.loads(request.arguments).get("code")
        if not isinstance(code, str):
            return ToolResult(outcome="not_sent", output="invalid_arguments: `code` is the program, a text.")
        pool = self._begun()
        if pool is None:
            return unavailable()
        try:
            sandbox = await pool.open(tool)
        except SandboxUnavailable as error:
            log.error("sandbox_start_failed", tool=request.name, error=str(error))
            return unavailable()
        try:
            return await self._run(request, tool, code, sandbox)
        except SandboxUnavailable as error:
            log.error("sandbox_failed", tool=request.name, error=str(error))
            return ToolResult(outcome="failed", output="tool_failed: the sandbox went.")
        except Unavailable as error:
            log.warning("session_files_unreadable", tool=request.name, error=error.code)
            return ToolResult(outcome="not_sent", output="files_unavailable: the files of the session cannot be read.")
        finally:
            pool.release(sandbox)

    async def _run(self, request: ToolRequest, tool: CodeTool, code: str, sandbox: Sandbox) -> ToolResult:
        filled = FilledFolder({})
        if self.files is not None and request.files:
            half = FolderBounds(max(1, tool.files // 2), tool.disk_mb * 2**19)  # the other half is the run's
            filled = await self.files.fill(sandbox.folder, request, half)
        result = await sandbox.run(code, tool.timeout_s)
        kept = KeptFiles()
        if not result.stopped:
            kept = await self._keep(request, tool, sandbox, filled)
        return result_of(result, filled, kept, tool)

    async def _keep(self, request: ToolRequest, tool: CodeTool, sandbox: Sandbox, filled: FilledFolder) -> KeptFiles:
        if self.files is not None:
            bounds = FolderBounds(tool.kept_files, tool.kept_mb * 2**20)
            return await self.files.keep(sandbox.folder, request, filled, tool.files, bounds)
        left = await asyncio.to_thread(plain_files, sandbox.folder, tool.files)
        missing = tuple(file.path for file in left if file.path not in filled.files)
        return KeptFiles(missing=missing, reason="this server stores none")


def unavailable() -> ToolResult:
    return ToolResult(outcome="not_sent", output="tool_unavailable: code cannot be run here.")


def result_of(result: SandboxResult, filled: FilledFolder, kept: KeptFiles, tool: CodeTool) -> ToolResult:
    """Returns the result of a run as the model gets it."""
    parts = [result.output.replace("\0", "\ufffd").rstrip("\n")]
    if result.dropped:
        parts.append(f"[cut off at {tool.result_bytes} bytes]")
    if result.stopped:
        why = _STOPPED.get(result.stopped, "it was stopped").format_map(msgspec.structs.asdict(tool))
        parts.append(f"[stopped: {why}; nothing that it wrote is kept]")
    if kept.files:
        parts.append(files_line(kept.files))
    if kept.missing:
        parts.append(f"[files that are not kept: {_listed(kept.missing)}; {kept.reason}]")
    if filled.missing:
        parts.append(f"[files that were not in the folder: {_listed(filled.missing)}; {filled.reason}]")
    text = "\n".join(part for part in parts if part)
    outcome: Outcome = "failed" if result.status or result.stopped else "done"
    return ToolResult(outcome=outcome, output=text, files=kept.files)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - FILES_NAMED_MAX
    return ", ".join(names[:FILES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
