"""Carries out the calls of server tools of one session: checks, intent, sending, and what comes back to the prompt.

    RunTools ─► agreed? fit? ─► ToolStarting ─► intent appended ─► SendToolCall ─► port ─► filters ─► ToolAnswered

After a crash the log says how far each call came. One without an intent begins like a new one. One with an intent and
without an output may have had its effect: it is sent again under its key where its tool takes keys, else its output is
that the outcome is not known. Two owners never both send a call whose tool takes no keys: the intent is in the fenced
log before the first one sends it, and the second one reads it there.

Does not know: HTTP, the tools file, how many calls run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from sessions.actor.actor_context import ActorContext
from sessions.actor.input_pipeline import InputPreparation
from sessions.actor.progress_reports import ProgressReports, Report
from sessions.actor.session_files import session_files
from sessions.actor.weak_calls import WeakCall
from sessions.machine.inputs_and_effects import (
    ArmToolDeadline,
    Input,
    Prepared,
    ToolAnswered,
    ToolApprovalNeeded,
    ToolDeadline,
    ToolProgressed,
    ToolStarting,
)
from sessions.machine.responses import OUTCOME_UNKNOWN, derive
from sessions.machine.scrubbing import listed_files
from sessions.machine.server_tools import arguments_of
from sessions.machine.state import Awaiting, State
from sessions.machine.tool_turns import ServerCall, ServerCalls
from sessions.model import commands as cm
from sessions.model.errors import SessileError
from sessions.model.types import CallId, CommandId, ResponseId, RunFile, SearchScope, Tool
from sessions.server_tools import CallFile, Outcome, ServerTool, ToolProgress, ToolRequest, ToolResult, canonical
from sessions.turn.ledger import Ledger

log = structlog.get_logger(__name__)

_REFUSED = "content_filter: what this tool answered was refused."
_EXCESS = "max_tool_calls: this answer may make no more calls, and this one was not made."
_GONE = "tool_not_found: the server has no tool {!r} any more."
_FAILED = "tool_failed: carrying this call out failed on our side."


class ToolRunner:
    """Carries out the calls of server tools of one actor. `post` passes the machine what has become of a call."""

    def __init__(self, state: State, ledger: Ledger, context: ActorContext, post: Callable[[Input], None]) -> None:
        self._state = state
        self._ledger = ledger
        self._context = context
        self._post = WeakCall(post)
        self._tasks: dict[tuple[ResponseId, CallId], asyncio.Task[None]] = {}
        self._deadlines: dict[ResponseId, asyncio.TimerHandle] = {}
        self._closed = False
        about = "Calls of server tools, by tool and outcome."
        self._calls = context.metrics.counter("tool_calls", about, "tool", "outcome")

    def run(self, response_id: ResponseId) -> None:
        """Continues every call of a response that has no output, each from the state that it has in the log."""
        waiting = self._state.awaiting.get(response_id)
        if self._closed or waiting is None or waiting.server is None:
            return
        for call in list(waiting.server.calls.values()):
            if call.call_id in waiting.missing and (response_id, call.call_id) not in self._tasks:
                self._go_on(waiting, waiting.server, call)

    def send(self, response_id: ResponseId, call_id: CallId) -> None:
        """Sends a call whose intent is durable."""
        waiting = self._state.awaiting.get(response_id)
        call = waiting.due_call(call_id) if waiting is not None else None
        if waiting is None or waiting.server is None or call is None:
            return
        tool = self._find(call)
        if tool is None:  # the file has changed meanwhile, and nothing was sent
            self._answer_ourselves(response_id, call, "not_sent", _GONE.format(call.name))
            return
        self._spawn(response_id, call_id, self._send(waiting, waiting.server, call))

    def arm_deadline(self, effect: ArmToolDeadline) -> None:
        """Starts the time after which the machine is informed that a response's tool outputs are overdue."""
        due_s = (effect.since - self._context.now_ms()) / 1000 + self._context.limits.tool_deadline_s
        self._deadlines[effect.response_id] = asyncio.get_running_loop().call_later(
            max(due_s, 0.0), self._post, ToolDeadline(effect.response_id)
        )

    def stop(self, response_id: ResponseId) -> None:
        """Cancels the running calls of a response, whose outputs nobody waits for any more."""
        for (of, _), task in list(self._tasks.items()):
            if of == response_id:
                task.cancel()

    def stop_all(self) -> None:
        """Cancels all calls and deadlines, and begins no more."""
        self._closed = True
        for task in list(self._tasks.values()):
            task.cancel()
        for deadline in self._deadlines.values():
            deadline.cancel()

    async def leave(self, patience_s: float) -> None:
        """Begins no more calls, waits up to `patience_s` for those that run, then cancels them."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=patience_s)
        late = list(self._tasks.values())
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    def come_back(self) -> None:
        """Begins calls again after `leave`."""
        self._closed = False
        for response_id in list(self._state.awaiting):
            self.run(response_id)

    # -- one call -----------------------------------------------------------------------------------------------------

    def _go_on(self, waiting: Awaiting, server: ServerCalls, call: ServerCall) -> None:
        tool, response_id = self._find(call), waiting.response_id
        if call.execution_id and (tool is None or not tool.takes_keys):
            self._answer_ourselves(response_id, call, "unknown", OUTCOME_UNKNOWN)
        elif call.is_excess:
            self._answer_ourselves(response_id, call, "not_sent", _EXCESS)
        elif tool is None:
            self._answer_ourselves(response_id, call, "not_sent", _GONE.format(call.name))
        elif call.execution_id:
            self._spawn(response_id, call.call_id, self._send(waiting, server, call))
        elif (tool.approval or call.must_ask) and call.approval != "approved":
            if not call.approval:
                self._post(ToolApprovalNeeded(response_id, call.call_id))
        else:
            self._spawn(response_id, call.call_id, self._begin(waiting, call, tool))

    async def _begin(self, waiting: Awaiting, call: ServerCall, tool: ServerTool) -> None:
        arguments = arguments_of(self._state, waiting.response_id, call.call_id) or ""
        try:
            plain = canonical(arguments)
            wrong = None
            if tool.tool.parameters is not None:
                wrong = await self._context.schemas.value_problem(tool.tool.parameters, arguments)
        except (ValueError, RecursionError):
            wrong, plain = "they are no JSON", ""
        except SessileError as error:
            wrong, plain = error.public_message, ""
        if wrong is not None:
            await self._answer(waiting, call, ToolResult(outcome="not_sent", output=f"invalid_arguments: {wrong}"))
            return
        key = self._state.key
        named = derive("call", key.tenant, key.session, waiting.response_id, call.call_id, call.name, plain)
        self._post(ToolStarting(waiting.response_id, call.call_id, named))

    async def _send(self, waiting: Awaiting, server: ServerCalls, call: ServerCall) -> None:
        tools, tool = self._context.tools, self._find(call)
        assert tools is not None
        arguments = arguments_of(self._state, waiting.response_id, call.call_id)
        if arguments is None:  # deleted behind the intent, before anything was sent by this process
            await self._answer(waiting, call, ToolResult(outcome="unknown", output=""))
            return
        takes_files, named = tool is not None and tool.check_file is not None, self._named(call)
        request = ToolRequest(
            key=self._state.key,
            response_id=waiting.response_id,
            call_id=call.call_id,
            name=call.name,
            arguments=arguments,
            execution_id=call.execution_id,
            user=self._state.user if takes_files else server.principal.user,
            search=named.search if named is not None and isinstance(named.search, SearchScope) else None,
            files=self._files(waiting, call) if takes_files else (),
        )
        async with ProgressReports(self._reported(waiting, server, call), self._context.spawn) as reports:
            result = await tools.call(request, reports.put)
        await self._answer(waiting, call, result)

    def _reported(self, waiting: Awaiting, server: ServerCalls, call: ServerCall) -> Report:
        """Returns a function that posts a call's progress with its message filtered. A message that filters refuse is
        left out."""

        async def report(progress: ToolProgress) -> None:
            preparation = self._preparation(server)
            message = progress.message
            try:
                message = await preparation.filter.alone(message) if message else None
            except SessileError:
                message = None
            self._post(
                ToolProgressed(
                    response_id=waiting.response_id,
                    call_id=call.call_id,
                    progress=progress.progress,
                    total=progress.total,
                    message=message,
                    findings=tuple(preparation.filter.findings),
                )
            )

        return report

    async def _answer(self, waiting: Awaiting, call: ServerCall, result: ToolResult) -> None:
        """Filters a tool's output like a user's text, tokenises it, and posts it."""
        assert waiting.server is not None
        output, failed = result.output, result.outcome != "done"
        if result.outcome == "unknown":
            output = f"{OUTCOME_UNKNOWN} {output}".rstrip()
        preparation = self._preparation(waiting.server)
        command_id = CommandId(call.execution_id or "tool")
        original = cm.ToolOutput(id=command_id, session=self._state.key.session, call_id=call.call_id, output=output)
        prepared: Prepared | None = None
        files: tuple[RunFile, ...] = ()
        try:
            changed, prepared = await preparation.one(original)
            assert isinstance(changed, cm.ToolOutput)
            output = changed.output
            files = listed_files(output, result.files)  # the names that filters have let be
        except SessileError as error:  # refused, or nobody could judge it
            failed = True
            output = _REFUSED if error.code == "content_filter" else f"{error.code}: {error.public_message}"
        self._calls.add(call.name, result.outcome)
        self._post(
            ToolAnswered(
                response_id=waiting.response_id,
                call_id=call.call_id,
                output=output,
                is_error=failed,
                whole=result.outcome != "unknown",
                prepared=prepared,
                findings=tuple(preparation.filter.findings),
                files=files,
            )
        )

    def _answer_ourselves(self, response_id: ResponseId, call: ServerCall, outcome: Outcome, output: str) -> None:
        """Posts an output that its tool has not given, and that no filter needs to see."""
        self._calls.add(call.name, outcome)
        self._post(
            ToolAnswered(
                response_id=response_id,
                call_id=call.call_id,
                output=output,
                is_error=True,
                whole=outcome != "unknown",
            )
        )

    # -- small --------------------------------------------------------------------------------------------------------

    def _find(self, call: ServerCall) -> ServerTool | None:
        tools = self._context.tools
        return tools.find(self._state.key.tenant, call.name) if tools is not None else None

    def _preparation(self, server: ServerCalls) -> InputPreparation:
        """Returns what passes words of tools through the filters, as those of the user for whom they are called."""
        context = self._context
        filter_s, bytes_max = context.metrics.filter_s.of("input"), context.limits.content_bytes
        return InputPreparation(server.principal, self._ledger, context.filters, bytes_max, filter_s)

    def _named(self, call: ServerCall) -> Tool | None:
        """Returns the tool of a call as the session's client has named it."""
        info = self._state.info
        return next((tool for tool in (() if info is None else info.tools) if tool.name == call.name), None)

    def _files(self, waiting: Awaiting, call: ServerCall) -> tuple[CallFile, ...]:
        """Returns the files of a call's session: those that its client gave the tool, and those of the branch before
        the response that made it. They are the same each time that the call is sent."""
        answer = self._state.answers.get(waiting.response_id)
        leaf = answer.items[-1] if answer is not None and answer.items else None
        return session_files(self._state, leaf, self._named(call))

    def _spawn(self, response_id: ResponseId, call_id: CallId, work: Coroutine[Any, Any, None]) -> None:
        name = response_id, call_id
        task = self._tasks[name] = self._context.spawn(self._guarded(response_id, call_id, work))
        task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: tuple[ResponseId, CallId], task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]

    async def _guarded(self, response_id: ResponseId, call_id: CallId, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # a bug here costs this call and spares the session
            log.exception("tool_call_failed", session=self._state.key.session, response=response_id, call=call_id)
            waiting = self._state.awaiting.get(response_id)
            call = waiting.due_call(call_id) if waiting is not None else None
            if call is not None and call.execution_id:
                self._answer_ourselves(response_id, call, "unknown", OUTCOME_UNKNOWN)
            elif call is not None:
                self._answer_ourselves(response_id, call, "failed", _FAILED)
