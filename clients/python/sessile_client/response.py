"""One answer as a program sees it: text as it comes, how it ended, what it cost.

A handle reads the session's view and keeps nothing but what it has already shown, so it survives
reconnects, snapshots and restarts of the server, and any number of handles may read one response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._items import Item, ResponseState, moved
from ._track import Phase
from ._values import text_or_none
from ._wire import Frame
from .errors import ResponseFailed

if TYPE_CHECKING:
    from .session import Session


@dataclass(frozen=True)
class ToolAnswer:
    """What ``tool.output`` did; ``response`` is there when it was the last output missing."""

    item_id: str
    response: Response | None


class Response:
    """A response, perhaps not accepted yet. Iterate it for its text; await it for its acceptance."""

    def __init__(
        self, session: Session, answer: asyncio.Future[Frame] | None, *, response_id: str | None = None
    ) -> None:
        self._session = session
        self._answer = answer
        self._ok: Frame = {}
        self._id = response_id
        self._snapshots_then = session._snapshots

    @property
    def session(self) -> Session:
        return self._session

    @property
    def id(self) -> str | None:
        """Known once accepted; None for a message sent with ``respond=False``."""
        self._take_answer()
        return self._id

    @property
    def item_id(self) -> str | None:
        """The user message that the command created, once accepted."""
        self._take_answer()
        return text_or_none(self._ok.get("item_id"))

    @property
    def state(self) -> ResponseState | None:
        """What the log holds of this response so far."""
        return self._session.view.responses.get(self.id or "")

    @property
    def status(self) -> str:
        """``waiting`` (not accepted), queued, in_progress, completed, incomplete, failed, or ``ended``."""
        state = self.state
        return state.status if state is not None else "waiting"

    @property
    def usage(self) -> dict[str, Any] | None:
        state = self.state
        return None if state is None else state.usage

    @property
    def incomplete_reason(self) -> str | None:
        state = self.state
        return None if state is None else state.incomplete_reason

    @property
    def output(self) -> list[Item]:
        """The items so far."""
        return self._session.view.output(self.id or "")

    @property
    def tool_calls(self) -> list[Item]:
        """The tool calls that its client must run."""
        return [item for item in self.output if item.type == "function_call" and not item.data.get("server")]

    @property
    def text_so_far(self) -> str:
        return self._session.view.text(self.id or "")

    async def accepted(self) -> Response:
        """Wait for the command's ``ok``: from then on it is journaled. Raises the server's refusal."""
        if self._answer is not None:
            await asyncio.shield(self._answer)
            self._take_answer()
        return self

    def __await__(self) -> Generator[Any, None, Response]:
        return self.accepted().__await__()

    async def wait(self) -> ResponseState:
        """Wait until the response has ended, however it did."""
        async for _ in self.texts():
            pass
        return self._final()

    async def text(self) -> str:
        """Wait for the whole answer, retractions applied. ResponseFailed if it failed."""
        self._raise_failure(await self.wait())
        return self.text_so_far

    async def texts(self) -> AsyncIterator[str]:
        """The whole text so far, each time it has changed, until the end: for a screen that is drawn anew."""
        await self.accepted()
        shown = ""
        while True:
            text, ended = self.text_so_far, self._ended()
            if text != shown:
                shown = text
                yield text
            elif ended:
                return
            else:
                await self._session._bell.wait()

    async def __aiter__(self) -> AsyncIterator[str]:
        """The text piece by piece. What a retraction takes back was already given out: see ``texts`` and ``text``."""
        shown, edits_seen, last = 0, 0, ""
        view = self._session.view
        async for text in self.texts():
            edits = state.edits if (state := self.state) is not None else []
            if self._session.view is view:
                shown = moved(shown, edits[edits_seen:])
            else:  # a snapshot came: go on behind what was shown, or behind everything if that has changed
                view = self._session.view
                shown = shown if text.startswith(last) else len(text)
            edits_seen = len(edits)
            if len(text) > shown:
                yield text[shown:]
            shown, last = len(text), text
        self._raise_failure(self._final())

    async def cancel(self) -> bool:
        """Stop it; the partial text stays. False if it had ended, unless its turn waits for tool outputs: then the
        turn ends, with an error for each that is missing, and it is true.
        """
        await self.accepted()
        return await self._session.cancel(self._id) if self._id is not None else False

    async def steer(self, content: str | Sequence[Mapping[str, Any]]) -> Response:
        """Say something while it is written; see ``Session.steer``. What is returned goes on."""
        await self.accepted()
        return await self._session.steer(content, self._id)

    def _take_answer(self) -> None:
        answer = self._answer
        if answer is None or not answer.done() or answer.exception() is not None:
            return
        self._ok = answer.result()
        self._answer = None
        self._id = text_or_none(self._ok.get("response_id"))

    @property
    def begun(self) -> bool:
        """Whether the log has shown it, or has shown a snapshot that it is no longer part of."""
        if self.id is None:
            return self._answer is None
        session = self._session
        if self.state is not None:
            return True
        offset = self._ok.get("offset")
        passed = isinstance(offset, int) and session.offset >= offset
        return passed and session.phase is Phase.LIVE and session._snapshots > self._snapshots_then

    def _ended(self) -> bool:
        """Whether the log has shown the end. Raises what keeps it from ever being shown."""
        state = self.state
        if self._id is None or (self.begun if state is None else state.ended):
            return True
        self._session._check()
        return self._session.phase is Phase.DELETED

    def _final(self) -> ResponseState:
        return self.state or ResponseState(self._id or "", "ended")

    def _raise_failure(self, state: ResponseState) -> None:
        if state.status == "failed":
            error = state.error or {}
            code, message = str(error.get("code", "unknown")), str(error.get("message", ""))
            raise ResponseFailed(state.id, code, message, self.text_so_far)

    def __repr__(self) -> str:
        return f"Response({self.id!r}, {self.status})"
