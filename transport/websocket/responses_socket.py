"""OpenAI's Responses over WebSocket: one connection on which one response after another is written.

A frame becomes a request of the server's own HTTP application (`inner_requests`), and each event of the stream that it
answers with a text frame: so nothing is possible here, and nothing is judged otherwise, than over HTTP. Frames that
begin a turn are carried out in order; commands (steer, cancel) at once, beside the turn.

Invariants:
* What a connection makes does not end with it: closing it leaves the answer to be written, and any other connection
  goes on from there. What is written is ended by `response.cancel`, or, where it is not stored, when nobody has read it
  for some seconds (`actors.hosting.orphan_policy`).
* Nothing is kept here that a second connection would miss: there is no limit to how long one lives.
* Bounded: turns that wait (`WAITING_MAX`), commands under way (`COMMANDS_MAX`), the bytes of both (one body's size),
  what all connections keep of large messages (`transport.websocket.upgraded`), and what is unsent: a stream is read on
  as the socket takes it, and who does not read is closed with 4408.

A task runs while a turn or a command does; an idle connection has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
import structlog
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN

from sessions.model.commands import SessionWarm
from sessions.model.errors import BadInput, Internal, Limited, Overloaded, SessileError, TooLarge, Unauthorized
from sessions.model.types import CommandId, Json, ResponseId
from transport import errors
from transport.websocket import responses_frames
from transport.websocket.handshake import AgreedHandshake
from transport.websocket.inner_requests import App, InnerRequest, InnerRequests
from transport.websocket.responses_frames import RESPONSES, TURNS, ResponsesFrame, refusal_event
from transport.websocket.upgraded import UpgradedConnection

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024  # turns that wait behind the running one
CONTROL_BYTES_MAX: Final = 139  # a ping with its payload
WAITING_MAX: Final = 8  # turns behind the one that is written
COMMANDS_MAX: Final = 8  # steers and cancels under way
_ENDED: Final = (b"event: response.completed", b"event: response.incomplete", b"event: response.failed")
_NEVER: Final = float("inf")

log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False, repr=False)
class ResponsesConnection(UpgradedConnection):
    """One connection of OpenAI's Responses protocol. `_app` is the HTTP application that carries out its requests."""

    PATH: ClassVar[str] = RESPONSES

    _app: App | None = None
    _host: str = ""
    _requests: InnerRequests | None = None
    _waiting: deque[ResponsesFrame] = field(default_factory=deque)
    _held_bytes: int = 0  # of waiting turns and running commands
    _running: bool = False  # whether a turn runs
    _current: str | None = None  # the response that is being written
    _named: asyncio.Event = field(default_factory=asyncio.Event)  # set once the running turn's response is known
    _sequence: int = 0  # the next sequence number of the running turn's events
    _called: ResponseId | None = None  # the last response, if it called tools and no output has come yet
    _steers: list[dict[str, Json]] = field(default_factory=list)  # accepted steers that wait for the response's end
    _commands: int = 0
    _commands_done: asyncio.Event = field(default_factory=asyncio.Event)
    _writable: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: bool = False  # a close frame was sent or received
    _heard_at: float = 0.0
    _wrote_at: float = 0.0
    _pinged: bool = False
    _stalled_since: float = _NEVER
    _leave_at: float = _NEVER
    _closing_since: float = 0.0

    # -- hooks of the socket ------------------------------------------------------------------------------------------

    def _check(self, agreed: AgreedHandshake) -> None:
        if agreed.principal is None and not self._shared.gateway.access.open:
            raise Unauthorized("invalid_api_key", "A key is needed: send it as a Bearer token with the handshake.")
        if agreed.encoding.binary:
            raise BadInput("invalid_request", "Responses are JSON: offer no other subprotocol.")

    def _agreed(self, agreed: AgreedHandshake) -> None:
        assert self._app is not None
        peer = self._transport.get_extra_info("peername")
        address = self._address()
        client = None if address is None else (address, peer[1] if isinstance(peer, tuple) else 0)
        scheme = "http" if self._transport.get_extra_info("sslcontext") is None else "https"
        self._read_frames(FRAME_BYTES_MAX)
        self._principal = agreed.principal
        self._requests = InnerRequests(self._app, agreed.principal, host=self._host, client=client, scheme=scheme)
        self._heard_at = self._wrote_at = self._shared.loop.time()
        self._writable.set()
        self._commands_done.set()
        self._shared.wheel.put(self)
        if agreed.principal is not None:
            try:
                self._unwatch = self._shared.gateway.access.watch(agreed.principal, self._credential_ended)
            except SessileError as error:
                self._credential_ended(error)

    def _closing(self) -> None:
        if not self._ending:
            self._ending = True
            self._closing_since = self._shared.loop.time()
            self._leave()

    def _finish(self) -> None:
        if self._requests is None or self._ws.close_rcvd is not None or not self._transport.can_write_eof():
            self._closing()
            self._transport.close()
        else:
            self._half_close()

    def _lost(self) -> None:
        self._closing()
        self._requests = None

    def _leave(self) -> None:
        """Tells running requests that nobody reads their answers; the answers are still written."""
        self._waiting.clear()
        self._writable.set()
        if self._requests is not None:
            self._requests.leave()

    def _stalled(self) -> None:
        self._writable.clear()
        self._stalled_since = self._shared.loop.time()
        if self._requests is not None:
            self._shared.wheel.put(self)

    def _flowing(self) -> None:
        self._stalled_since = _NEVER
        self._writable.set()

    def _flush_out(self) -> None:
        """Writes an error event if the parser is about to close the connection because a message is too large: the
        event comes before the close frame and gives the reason."""
        closing = self._ws.close_sent
        if closing is not None and closing.code == CloseCode.MESSAGE_TOO_BIG and not self._ending:
            error = TooLarge("too_large", f"A message has at most {FRAME_BYTES_MAX} bytes.")
            self._transport.write(_text(_encode(refusal_event(error))))
            self._closing()

    # -- in -----------------------------------------------------------------------------------------------------------

    def _take_in(self, data: bytes) -> None:
        self._heard_at = self._shared.loop.time()
        self._pinged = False
        UpgradedConnection._take_in(self, data)
        if self._called is not None and self._counted_bytes - self._held_bytes > CONTROL_BYTES_MAX and not self._ending:
            called, self._called = self._called, None
            self._shared.gateway.tasks.start(self._warm(called))

    async def _warm(self, called: ResponseId) -> None:
        """Warms the session of a response that called tools when the first bytes of a message come, probably their
        outputs: its KV is restored while the rest arrives."""
        gateway = self._shared.gateway
        try:
            principal = self._principal or gateway.access.authenticate(None)
            place = await gateway.find_response(principal, called)
            if place is not None:
                name = CommandId(f"warm_{gateway.new_id()}")
                await gateway.execute(principal, SessionWarm(id=name, session=place.key.session))
        except SessileError as error:
            log.debug("session_warm_failed", response=called, error=error.code)  # a hint: the turn will report it

    def _held(self) -> int:
        return self._held_bytes

    def _count_bytes(self) -> None:
        if self._requests is not None:  # not yet agreed, or lost
            UpgradedConnection._count_bytes(self)

    def _end_overloaded(self, error: Overloaded) -> None:
        self._end(error, errors.TRY_LATER)

    def _whole_message(self, data: Any, binary: bool) -> None:
        if self._ending or self._requests is None:
            return
        if binary:
            error = BadInput("bad_frame", "Messages are JSON in text frames; this one is binary.")
            self._end(error, errors.UNSUPPORTED_DATA)
            return
        try:
            frame = responses_frames.read_frame(data)
            if frame.type in TURNS:
                self._wait_in_line(frame)
            else:
                self._begin_command(frame)
        except SessileError as error:
            self._send(refusal_event(error))

    def _wait_in_line(self, frame: ResponsesFrame) -> None:
        """Queues a turn and starts to work if none runs. Raises Limited."""
        if len(self._waiting) >= WAITING_MAX:
            raise Limited("rate_limited", f"On one connection at most {WAITING_MAX} turns wait.", retry_after_ms=1000)
        self._hold(frame)
        self._waiting.append(frame)
        if not self._running:
            self._running = True
            self._named.clear()
            self._shared.gateway.tasks.start(self._run())

    def _begin_command(self, frame: ResponsesFrame) -> None:
        """Starts a command beside the turn. Raises Limited."""
        if self._commands >= COMMANDS_MAX:
            raise Limited("rate_limited", f"More than {COMMANDS_MAX} commands are under way.", retry_after_ms=250)
        self._hold(frame)
        self._commands += 1
        self._commands_done.clear()
        self._shared.gateway.tasks.start(self._command(frame))

    def _hold(self, frame: ResponsesFrame) -> None:
        """Counts a frame among those that wait. Raises Limited."""
        if self._held_bytes + len(frame.data) > FRAME_BYTES_MAX:
            what = f"On one connection at most {FRAME_BYTES_MAX} bytes of turns and commands wait."
            raise Limited("rate_limited", what, retry_after_ms=1000)
        self._held_bytes += len(frame.data)

    # -- turns --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Carries out the waiting turns one after the other."""
        try:
            while self._waiting and not self._ending:
                frame = self._waiting.popleft()
                self._held_bytes -= len(frame.data)
                self._count_bytes()
                self._steers.clear()
                self._named.clear()
                try:
                    request: InnerRequest | None = responses_frames.turn_request(frame)
                    while request is not None and not self._ending:
                        successor = await self._turn(request)
                        request = None if successor is None else responses_frames.retrieve_request(successor)
                except SessileError as error:
                    self._send(refusal_event(error))
                except Exception:
                    log.exception("turn_failed")
                    self._send(refusal_event(Internal("internal_error", "The server failed to carry this out.")))
                finally:
                    self._current = None
                    self._named.set()
        finally:
            self._running = False
            self._named.set()
        if self._leave_at != _NEVER:
            self._close(errors.RESTART, "the server goes away")

    async def _turn(self, request: InnerRequest) -> str | None:
        """Writes one response to its end. Returns the id of the response that continues it if it was steered."""
        requests = self._requests
        if requests is None:
            return None
        status, refused, successor = 0, b"", None

        def begun(given: int) -> None:
            nonlocal status
            status = given

        async def chunk(piece: bytes) -> None:
            nonlocal refused, successor
            if status != 200:
                refused += piece
                return
            payload = responses_frames.payload_of(piece)
            if payload is None:
                return
            if self._current is None and piece.startswith(b"event: response."):
                self._current = msgspec.json.decode(payload)["response"]["id"]  # a stream begins with it
                self._named.set()
            self._sequence += 1
            if piece.startswith(_ENDED):
                await self._commands_done.wait()  # a steer that ended it is answered first
                if self._current is not None and b'"function_call"' in payload:
                    self._called = ResponseId(self._current)
                self._current, successor = None, _successor(payload)
            elif piece.startswith(b"event: error"):
                payload = responses_frames.stream_error(payload)
            await self._writable.wait()
            self._write(payload)
            if self._steers and successor is None and piece.startswith(_ENDED):
                successor = self._follow_steering(payload)

        self._sequence, self._called = 0, None
        if request.method == "GET":
            self._current = request.path.removeprefix(RESPONSES + "/")
            self._named.set()
        await requests.stream(request, begun, chunk)
        if status != 200:
            self._send(responses_frames.failed_event(status, refused))
        return successor

    def _follow_steering(self, ended: bytes) -> str | None:
        """Handles steers that waited for a response's end. If it called no tools, returns the id of the response that
        answers the first; otherwise sends events saying that they wait for the tools' outputs, and returns None."""
        required = responses_frames.required_input(ended)
        if not required:
            return str(self._steers.pop(0)["response_id"])
        for accepted in self._steers:
            self._sequence += 1
            self._send(responses_frames.pending_event(accepted["steer"], required, self._sequence))
        self._steers.clear()
        return None

    async def _command(self, frame: ResponsesFrame) -> None:
        requests = self._requests
        try:
            if requests is None:
                return
            if frame.type == "response.cancel":
                if self._running and frame.fields.get("response_id") is None:  # sent right behind its `response.create`
                    await self._named.wait()
                status, answer = await requests.whole(responses_frames.cancel_request(frame, self._current))
                if status != 200:
                    self._send(responses_frames.failed_event(status, answer))
                return
            try:
                status, answer = await requests.whole(responses_frames.steer_request(frame))
                failed = responses_frames.failed_event(status, answer)["error"] if status != 200 else None
            except SessileError as error:
                failed = errors.public(error)
            if failed is not None:
                self._send(responses_frames.steer_failed(frame, failed, self._sequence))
            else:
                events = responses_frames.steer_events(answer, self._sequence)
                for event in events:
                    self._send(event)
                accepted, *pending = events
                ours = accepted["steer"]["previous_response_id"] == self._current
                if ours and accepted["status"] == "pending" and not pending:  # it is still being written
                    self._steers.append(accepted)
        except SessileError as error:
            self._send(refusal_event(error))
        except Exception:
            log.exception("command_failed", command=frame.type)
            self._send(refusal_event(Internal("internal_error", "The server failed to carry this out.")))
        finally:
            self._held_bytes -= len(frame.data)
            self._count_bytes()
            self._commands -= 1
            if not self._commands:
                self._commands_done.set()

    # -- out ----------------------------------------------------------------------------------------------------------

    def _send(self, event: dict[str, Any]) -> None:
        self._write(_encode(event))

    def _write(self, payload: bytes) -> None:
        if not self._ending and not self._transport.is_closing():
            self._transport.write(_text(payload))
            self._wrote_at = self._shared.loop.time()

    def flush(self, now: float) -> None:
        """Does nothing: events are written at once."""

    # -- time and the end ---------------------------------------------------------------------------------------------

    def due(self) -> float:
        timing = self._shared.limits.timing
        if self._ending:
            return self._closing_since + timing.close_s
        quiet = self._wrote_at if self._pinged else min(self._heard_at, self._wrote_at)
        return min(
            quiet + timing.heartbeat_s,
            self._heard_at + timing.silence_s,
            self._stalled_since + timing.slow_reader_s,
            self._leave_at,
        )

    def elapsed(self, now: float) -> None:
        """Sends a ping or closes the connection, whichever is due. The timer wheel calls this."""
        timing = self._shared.limits.timing
        if self._ending:
            self._transport.abort()
            return
        if now >= self._leave_at:
            self._close(errors.RESTART, "the server goes away")
        elif now >= self._stalled_since + timing.slow_reader_s:
            self._close(errors.SLOW_READER, "nothing was read; read the response again")
        elif now >= self._heard_at + timing.silence_s:
            self._close(errors.HEARTBEAT, "nothing was heard")
        elif now >= self.due():
            self._pinged, self._wrote_at = True, now
            self._ws.send_ping(b"")
            self._write_for_parser()
        if not self._transport.is_closing():
            self._shared.wheel.put(self)

    def goaway(self, reason: str, after_ms: int) -> None:
        """Closes the connection once no response is being written, and at the latest after `after_ms`."""
        if self._requests is None or self._ending or self._leave_at != _NEVER:
            return
        self._leave_at = self._shared.loop.time() + after_ms / 1000
        if self._running:
            self._shared.wheel.put(self)
        else:
            self._close(errors.RESTART, "the server goes away")

    def _credential_ended(self, error: SessileError) -> None:
        self._end(error, errors.row(error.code).close or errors.UNAUTHORIZED)

    def _end(self, error: SessileError, code: int) -> None:
        self._send(refusal_event(error))
        self._close(code, error.code)

    def _close(self, code: int, reason: str) -> None:
        if self._ws.state is not OPEN or self._ending:
            return
        self._shared.gateway.count(f"closed_{code}")
        log.info("connection_closed", code=code, reason=reason)
        self._closing()
        self._ws.send_close(code, reason)
        self._write_for_parser()
        self._shared.wheel.put(self)


def _text(payload: bytes) -> bytes:
    """Returns a payload as a whole text frame."""
    return Frame(Opcode.TEXT, payload).serialize(mask=False)


def _successor(payload: bytes) -> str | None:
    details = msgspec.json.decode(payload)["response"].get("incomplete_details") or {}
    name = details.get("response_id")
    return name if details.get("reason") == "steered" and isinstance(name, str) else None
