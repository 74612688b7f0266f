"""Runs programs of an interpreter (Monty) that has nothing but its tools: no files, no network, no packages, no clock
that moves, and the same chance each time.

A program is run from call to call: at each it is suspended, and what its interpreter needs to go on is handed out. So
between two calls nothing runs and nothing is held here, and going on after a crash is what going on always is. A
snapshot is read only by the version that made it, and only where it is what the log says that it was; else the program
is run anew on the recorded answers, and each call that it makes must be the one that stands in the log.

A worker is a process of its own with an empty environment; it asks for files and for time, and is refused.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from inference.tools.tools_file import CodeTool
from sessions.server_tools import ProgramCall, ProgramStep, ProgramSuspended, ToolResult

if TYPE_CHECKING:
    import pydantic_monty

log = structlog.get_logger(__name__)

WORKERS_MAX: Final = 16
SNAPSHOT_BYTES_MAX: Final = 1_000_000
ARGUMENTS_MAX: Final = 100_000
RECURSION_MAX: Final = 400
SUSPENSIONS_MAX: Final = 2_000
DIED_S: Final = 5.0  # beyond its time, until a worker that does not stop is killed
_MOMENT: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_PACKAGE: Final = "pydantic-monty"


class ProgramInterpreter:
    """Runs programs in worker processes of one replica, which start with the first program."""

    def __init__(self) -> None:
        self.missing = ""
        try:
            self.version = f"monty {importlib.metadata.version(_PACKAGE)}"
        except importlib.metadata.PackageNotFoundError:
            self.missing = f"the package {_PACKAGE} is not installed (make setup-code)"
            self.version = ""
        self._stack = contextlib.AsyncExitStack()
        self._pool: pydantic_monty.AsyncMonty | None = None

    async def _begun(self) -> pydantic_monty.AsyncMonty:
        if self._pool is None:
            import pydantic_monty
            from pydantic_monty._binary import find_monty_binary

            launcher = self._stack.enter_context(_bare_launcher(find_monty_binary()))
            pool = pydantic_monty.AsyncMonty(
                binary_path=launcher,
                min_processes=1,
                max_processes=WORKERS_MAX,
                feed_duration_limit_grace=DIED_S,
            )
            self._pool = await self._stack.enter_async_context(pool)
        return self._pool

    async def close(self) -> None:
        """Ends every worker."""
        await self._stack.aclose()

    async def advance(self, step: ProgramStep, tool: CodeTool) -> ProgramSuspended | ToolResult:
        """Runs the program to its next call or its end."""
        import pydantic_monty as monty

        pool = await self._begun()
        point = step.point
        try:
            if point is not None and point.version == self.version and point.snapshot:
                try:
                    return await self._resumed(pool, step, tool)
                except _Unreadable as error:
                    log.warning("program_snapshot_refused", error=str(error))
            return await self._replayed(pool, step, tool)
        except monty.MontyError as error:
            log.warning("program_worker_failed", error=type(error).__name__)
            return ToolResult(outcome="failed", output="tool_failed: the interpreter stopped: it ran for too long.")

    async def _resumed(
        self, pool: pydantic_monty.AsyncMonty, step: ProgramStep, tool: CodeTool
    ) -> ProgramSuspended | ToolResult:
        import pydantic_monty as monty

        assert step.point is not None
        printed = _Printed(tool.result_bytes, step.point.printed)
        async with pool.checkout(**_terms(step, tool)) as session:
            try:
                at = await session.load_snapshot(step.point.snapshot, print_callback=printed)
            except (monty.MontyError, RuntimeError, ValueError) as error:
                raise _Unreadable(f"{type(error).__name__}") from error
            if not isinstance(at, monty.AsyncFunctionSnapshot):
                raise _Unreadable("it waits for no call")
            return await self._driven(at, step, tool, printed, [*step.done[-1:]])

    async def _replayed(
        self, pool: pydantic_monty.AsyncMonty, step: ProgramStep, tool: CodeTool
    ) -> ProgramSuspended | ToolResult:
        import pydantic_monty as monty

        printed = _Printed(tool.result_bytes)
        code = json.loads(step.request.arguments)["code"]
        async with pool.checkout(**_terms(step, tool)) as session:
            try:
                at = await session.feed_start(code, print_callback=printed)
            except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
                return _raised(error, printed)
            return await self._driven(at, step, tool, printed, [*step.done])

    async def _driven(
        self, at: Any, step: ProgramStep, tool: CodeTool, printed: _Printed, answers: list[ProgramCall]
    ) -> ProgramSuspended | ToolResult:
        """Continues at a place of the program, through calls with known answers, to the first call without one."""
        import pydantic_monty as monty

        try:
            while not isinstance(at, monty.MontyComplete):
                if isinstance(at, monty.AsyncNameLookupSnapshot):
                    at = await at.resume()
                    continue
                if isinstance(at, monty.AsyncFutureSnapshot):
                    refused: Any = {"exc_type": "RuntimeError", "message": "calls are not awaited: they return"}
                    at = await at.resume(dict.fromkeys(at.pending_call_ids, refused))
                    continue
                if at.is_os_function or at.object_id is not None:
                    at = await at.resume(_error("PermissionError", "programs have no files, clock or environment"))
                    continue
                try:
                    arguments = _arguments(str(at.function_name), at.args, at.kwargs, step.functions)
                except NameError as error:
                    at = await at.resume(_error("NameError", str(error)))
                    continue
                except (TypeError, ValueError, RecursionError) as error:
                    at = await at.resume(_error("TypeError", str(error)))
                    continue
                if not answers:
                    return await self._suspended(at, arguments, printed, step, tool)
                answer = answers.pop(0)
                if (answer.name, answer.arguments) != (at.function_name, arguments):
                    return ToolResult(
                        outcome="unknown",
                        output="(the program made other calls when it was run again; none was sent twice)",
                    )
                at = await at.resume(_answered(answer))
        except monty.MontyRuntimeError as error:
            return _raised(error, printed)
        if answers:
            return ToolResult(outcome="unknown", output="(the program made fewer calls when it was run again)")
        worth = at.output
        return ToolResult(outcome="done", output=printed.text("" if worth is None else repr(worth)))

    async def _suspended(
        self, at: Any, arguments: str, printed: _Printed, step: ProgramStep, tool: CodeTool
    ) -> ProgramSuspended | ToolResult:
        if len(step.done) >= tool.calls_max:
            return ToolResult(outcome="failed", output=printed.text(f"[stopped: it made {tool.calls_max} calls]"))
        snapshot = at.dump()
        if not isinstance(snapshot, bytes):
            snapshot = await snapshot
        if len(snapshot) > SNAPSHOT_BYTES_MAX:
            big = f"[stopped: it held more than {SNAPSHOT_BYTES_MAX} bytes at a call]"
            return ToolResult(outcome="failed", output=printed.text(big))
        return ProgramSuspended(
            name=str(at.function_name),
            arguments=arguments,
            version=self.version,
            snapshot=snapshot,
            printed=printed.so_far,
        )


@contextlib.asynccontextmanager
async def open_interpreter() -> AsyncIterator[ProgramInterpreter]:
    """Opens an interpreter of programs, and closes it at the end."""
    interpreter = ProgramInterpreter()
    try:
        yield interpreter
    finally:
        await interpreter.close()


class _Unreadable(Exception):
    """Raised if a stored state of a program cannot be used."""


class _Printed:
    """The output that a program prints, up to a bound."""

    def __init__(self, bytes_max: int, before: str = "") -> None:
        self._left = bytes_max - len(before.encode())
        self._max = bytes_max
        self._parts = [before]
        self._cut = False

    def __call__(self, stream: str, text: str) -> None:
        if self._left <= 0:
            self._cut = True
            return
        kept = text.encode()[: self._left].decode(errors="ignore")
        self._cut = self._cut or len(kept) < len(text)
        self._left -= len(text.encode())
        self._parts.append(kept)

    @property
    def so_far(self) -> str:
        return "".join(self._parts)

    def text(self, more: str) -> str:
        """Returns the whole output, followed by `more`."""
        worth = more.encode()[: self._max].decode(errors="ignore")
        cut = f"[cut off at {self._max} bytes]" if self._cut or len(worth) < len(more) else ""
        return "\n".join(part for part in (self.so_far.rstrip("\n"), worth, cut) if part)


def _terms(step: ProgramStep, tool: CodeTool) -> dict[str, Any]:
    """Returns the program's limits, with a clock and a random seed that are the same each time it is run."""
    return {
        "limits": {
            "max_memory": tool.memory_mb * 2**20,
            "max_feed_duration_secs": min(tool.timeout_s, tool.cpu_s),
            "max_recursion_depth": RECURSION_MAX,
            "max_suspensions": SUSPENSIONS_MAX,
        },
        "os_policy": {
            "datetime": _MOMENT,
            "sleep": "zero",
            "random_start": {"seed": step.request.execution_id},
        },
    }


def _arguments(name: str, given: tuple[Any, ...], named: dict[str, Any], functions: dict[str, tuple[str, ...]]) -> str:
    """Returns the arguments of a call as JSON. Raises NameError, TypeError, ValueError."""
    parameters = functions.get(name)
    if parameters is None:
        raise NameError(f"name {name!r} is not defined; tools are: {', '.join(functions) or 'none'}")
    if len(given) > len(parameters):
        raise TypeError(f"{name}() takes {len(parameters)} arguments, got {len(given)}: name them")
    made = dict(zip(parameters, given, strict=False))
    if made.keys() & named.keys():
        raise TypeError(f"{name}() got two values for {next(iter(made.keys() & named.keys()))!r}")
    text = json.dumps({**made, **named}, ensure_ascii=False, allow_nan=False)
    if len(text) > ARGUMENTS_MAX:
        raise ValueError(f"{name}() takes at most {ARGUMENTS_MAX} characters of arguments")
    return text


def _answered(call: ProgramCall) -> Any:
    if call.is_error:
        return _error("RuntimeError", call.output)
    try:
        return {"return_value": json.loads(call.output)}
    except (ValueError, RecursionError):
        return {"return_value": call.output}


def _error(kind: str, message: str) -> dict[str, str]:
    return {"exc_type": kind, "message": message}


def _raised(error: Any, printed: _Printed) -> ToolResult:
    return ToolResult(outcome="failed", output=printed.text(error.display("traceback")))


@contextlib.contextmanager
def _bare_launcher(binary: str) -> Any:
    """Yields a script that starts the worker with an empty environment."""
    with tempfile.TemporaryDirectory(prefix="sessile-programs-") as folder:
        launcher = Path(folder) / "worker"
        quoted = binary.replace("'", "'\\''")
        launcher.write_text(f"#!/bin/sh\nexec env -i '{quoted}' \"$@\"\n")
        launcher.chmod(stat.S_IRUSR | stat.S_IXUSR)
        yield os.fspath(launcher)
