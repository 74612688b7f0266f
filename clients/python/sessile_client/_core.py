"""The client's side of the protocol as a machine without I/O.

Decides everything that is not a socket: what to send after connecting, which sessions to resume from where, which
commands to (re)send, when to acknowledge, when to ping, when silence means that the connection is dead, when and
whether to dial again. Time is a number that each call brings (seconds of one monotonic clock), chance and ids are
given at construction.

The caller's duties: call ``dialing``, then ``opened`` or ``dial_failed``; hand over every message with ``received``,
the end of the connection with ``closed``, and ``tick`` no later than ``wakeup()`` says. After every call: send
``take_outbox()`` in order, close the transport if ``take_close()`` names a code (``closed`` is not called for it),
deliver ``take_notices()``.

Invariants: every submitted command gets exactly one ``Answered``; a command is repeated only under its own id; a
session's view only ever moves along the log. It does NOT know asyncio, encodings or WebSockets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

from . import _notices as notices
from . import _policy as policy
from . import errors
from ._notices import Link
from ._policy import Limits
from ._track import Step, Track
from ._window import Window
from ._wire import Frame, check_integers, integer, string
from .errors import ServerError, SessileError, WireError


@dataclass
class _Command:
    body: Frame
    timeout_s: float | None
    deadline: float | None
    attempts: int = 0
    #: sent on the present connection and not answered
    in_flight: bool = False
    #: when to repeat after a refusal that is retryable
    due_at: float | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class ClientCore:
    """One client: one connection at a time, many sessions, many commands."""

    rng: random.Random
    new_id: Callable[[], str]
    now: InitVar[float] = 0.0
    device: str | None = None
    rollup_ms: int = 0
    limits: Limits = field(default_factory=Limits)
    link: Link = field(default=Link.OFFLINE, init=False)
    dial_at: float = field(init=False)
    error: SessileError | None = field(default=None, init=False)
    tracks: dict[str, Track] = field(default_factory=dict, init=False)
    _attempt: int = field(default=0, init=False)
    _commands: dict[str, _Command] = field(default_factory=dict, init=False)
    _subscribes: dict[str, str] = field(default_factory=dict, init=False)
    _subscribe_at: dict[str, float] = field(default_factory=dict, init=False)
    _outbox: list[Frame] = field(default_factory=list, init=False)
    _notices: list[notices.Notice] = field(default_factory=list, init=False)
    _close: int | None = field(default=None, init=False)
    _connection_error: ServerError | None = field(default=None, init=False)

    def __post_init__(self, now: float) -> None:
        self.dial_at = now
        self._reset_connection()

    def _reset_connection(self) -> None:
        self._received_at = 0.0
        self._pinged = False
        self._ready_by: float | None = None
        self._leave_at: float | None = None
        self._heartbeat_s = self.limits.heartbeat_ms / 1000
        self._window = Window(self.limits.ack_after_s)
        self._subscribes.clear()
        self._subscribe_at.clear()
        self._outbox.clear()
        self._in_flight = 0
        for command in self._commands.values():
            command.in_flight = False
        for track in self.tracks.values():
            track.disconnected()

    # What the caller carries out

    def take_outbox(self) -> list[Frame]:
        frames, self._outbox = self._outbox, []
        return frames

    def take_notices(self) -> list[notices.Notice]:
        taken, self._notices = self._notices, []
        return taken

    def take_close(self) -> int | None:
        """A close code if the transport must be closed now."""
        code, self._close = self._close, None
        return code

    def wakeup(self) -> float | None:
        """When ``tick`` (or the next dial) is due; None: nothing is pending."""
        times: list[float | None] = [c.deadline for c in self._commands.values()]
        if self.link is Link.OFFLINE:
            times.append(self.dial_at)
        elif self.link is Link.CONNECTING:
            times.append(self._ready_by)
        elif self.link is Link.READY:
            times += [self._leave_at, self._received_at + self._heartbeat_s * (1.4 if self._pinged else 1.0)]
            times += [c.due_at for c in self._commands.values()]
            times += self._subscribe_at.values()
            times.append(self._window.due_at)
        return min((t for t in times if t is not None), default=None)

    # What the program requests

    def submit(
        self,
        type_: str,
        fields: Mapping[str, Any],
        now: float,
        *,
        id: str | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """Take a command; its answer comes as ``Answered``. Raises if it can never be sent, and then nothing was."""
        if self.link is Link.STOPPED:
            raise self.error or errors.Lost("the client is closed")
        if len(self._commands) >= self.limits.commands_max:
            raise errors.TooManyCommands(f"{self.limits.commands_max} commands are unanswered")
        command_id = id if id is not None else self.new_id()
        if command_id in self._commands:
            raise ValueError(f"{command_id} is already waiting for its answer")
        body: Frame = {"type": type_, "id": command_id, **fields}
        check_integers(body)
        deadline = None if timeout_s is None else now + timeout_s
        self._commands[command_id] = _Command(body, timeout_s, deadline)
        self._send_commands()
        return command_id

    def attach(self, track: Track) -> None:
        """Read a session from the track's position; requested at once if the connection is ready."""
        self.tracks[track.session] = track
        if self.link is Link.READY:
            self._subscribe(track)

    def detach(self, session: str) -> None:
        """Stop reading a session."""
        track = self.tracks.pop(session, None)
        self._window.forget(session)
        self._subscribe_at.pop(session, None)
        if track is not None and track.reading and self.link is Link.READY:
            self._outbox.append({"type": "unsubscribe", "id": self.new_id(), "session": session})

    def stop(self, error: SessileError | None = None, code: int = policy.CLOSE_NORMAL) -> None:
        """End for good: every waiting command is answered with the error."""
        if self.link is Link.STOPPED:
            return
        if self.link in (Link.CONNECTING, Link.READY):
            self._close = code
        self.link = Link.STOPPED
        self.error = error or errors.Lost("the client was closed")
        self._reset_connection()
        for command_id in list(self._commands):
            self._answer(command_id, None, self.error)
        self._notices.append(notices.Stopped(self.error))

    # What happens to the connection

    def dialing(self) -> None:
        assert self.link is Link.OFFLINE
        self.link = Link.CONNECTING

    def dial_failed(self, now: float, failure: policy.DialError) -> None:
        if self.link is not Link.CONNECTING:
            return
        if failure.fatal:
            self.stop(errors.ConnectionStopped(str(failure), http_status=failure.http_status))
            self._close = None
            return
        self._dial_later(
            now, policy.CLOSE_ABNORMAL, str(failure), failure.retry_after_s, captive_portal=failure.captive_portal
        )

    def opened(self, now: float) -> None:
        """The transport is open: greet, and resume every session that is being read."""
        if self.link is not Link.CONNECTING:
            return
        self._received_at = now
        self._ready_by = now + self.limits.ready_timeout_s
        hello: Frame = {"type": "hello"}
        if self.device is not None:
            hello["device"] = self.device
        if self.rollup_ms:
            hello["rollup_ms"] = self.rollup_ms
        resume = [track.request() for track in self.tracks.values() if track.reading]
        if resume:
            hello["resume"] = resume
        self._outbox.append(hello)

    def received(self, frames: list[Frame], size_bytes: int, now: float) -> None:
        """One message of the server's, decoded. A frame that breaks the protocol stops the client."""
        if self.link not in (Link.CONNECTING, Link.READY):
            return
        self._received_at = now
        self._pinged = False
        try:
            for frame in frames:
                self._frame(frame, now)
                if self.link not in (Link.CONNECTING, Link.READY):
                    return
        except WireError as exc:
            self.broken(exc)
            return
        self._window.message(size_bytes, now)
        self._outbox += self._window.acknowledge(now)

    def broken(self, error: WireError) -> None:
        """The peer does not speak the protocol; another attempt would not change that."""
        self.stop(errors.ConnectionStopped(str(error), close_code=error.close_code), error.close_code)

    def redial(self, now: float) -> None:
        """The network is another: give the connection up, whatever it looks like, and dial at once."""
        if self.link is Link.STOPPED:
            return
        if self.link in (Link.CONNECTING, Link.READY):
            self._close = policy.CLOSE_NORMAL
            self.link = Link.OFFLINE
            self._reset_connection()
            self._notices.append(notices.Disconnected(policy.CLOSE_NORMAL, "another network", 0.0))
        self._attempt = 0
        self.dial_at = now

    def closed(self, code: int, reason: str, now: float, *, captive_portal: bool = False) -> None:
        """The transport ended, and not by us."""
        if self.link not in (Link.CONNECTING, Link.READY):
            return
        if code in policy.FATAL_CLOSES:
            message = f"the server closed with {code} ({reason or policy.FATAL_CLOSES[code]})"
            if self._connection_error is not None:
                message += f": {self._connection_error}"
            self.stop(errors.ConnectionStopped(message, close_code=code))
            self._close = None
            return
        self._dial_later(now, code, reason, captive_portal=captive_portal)

    def tick(self, now: float) -> None:
        """Whatever time alone brings about."""
        for command_id, command in list(self._commands.items()):
            if command.deadline is not None and now >= command.deadline:
                self._answer(command_id, None, errors.CommandTimeout(command_id, command.timeout_s or 0.0))
        if self.link is Link.CONNECTING and self._ready_by is not None and now >= self._ready_by:
            self._hang_up(now, policy.CLOSE_HEARTBEAT, "no ready")
        if self.link is not Link.READY:
            return
        if now >= self._received_at + self._heartbeat_s * 1.4:
            self._hang_up(now, policy.CLOSE_HEARTBEAT, "silence")
            return
        if self._leave_at is not None and now >= self._leave_at:
            self._hang_up(now, policy.CLOSE_GOING_AWAY, "the server said goaway and stayed")
            return
        if not self._pinged and now >= self._received_at + self._heartbeat_s:
            self._pinged = True
            self._outbox.append({"type": "ping"})
        for session, at in list(self._subscribe_at.items()):
            if now >= at:
                del self._subscribe_at[session]
                self._subscribe(self.tracks[session])
        for command in self._commands.values():
            if command.due_at is not None and now >= command.due_at:
                command.due_at = None
        self._send_commands()
        self._outbox += self._window.acknowledge(now)

    # Frames

    def _frame(self, frame: Frame, now: float) -> None:
        match frame["type"]:
            case "event":
                self._on_event(frame, now)
            case "ok":
                self._on_ok(frame)
            case "error":
                self._on_error(frame, now)
            case "ready":
                self._on_ready(frame)
            case "resumed":
                self._on_resumed(frame, now)
            case "caught_up":
                track = self.tracks.get(string(frame, "session"))
                if track is not None:
                    step, live = track.caught_up(frame)
                    self._carry_out(step, track, now)
                    if live:
                        self._progress()
                        self._notices.append(notices.CaughtUp(track.session))
            case "ping":
                self._outbox.append({"type": "pong"})
            case "goaway":
                after_ms = integer(frame, "after_ms", default=0)
                self._leave_at = now + after_ms / 1000 + self.limits.goaway_grace_s
                self._notices.append(notices.GoingAway(str(frame.get("reason", "")), after_ms))
            # Not so pong, and whatever later versions add.

    def _on_ready(self, frame: Frame) -> None:
        if self.link is not Link.CONNECTING:
            return
        self.link = Link.READY
        self._ready_by = None
        window = self._window
        self._heartbeat_s = integer(frame, "heartbeat_ms", least=1, default=self.limits.heartbeat_ms) / 1000
        window.events_max = integer(frame, "window_events", least=1, default=window.events_max)
        window.bytes_max = integer(frame, "window_bytes", least=1, default=window.bytes_max)
        self._notices.append(notices.Ready(str(frame.get("connection", ""))))
        for track in self.tracks.values():
            if track.reading and not track.requested:
                self._subscribe(track)
        self._send_commands()

    def _on_event(self, frame: Frame, now: float) -> None:
        session = string(frame, "session")
        track = self.tracks.get(session)
        self._window.event()
        if track is None or not track.reading:
            return
        step, event = track.event(frame)
        if event is not None:
            self._window.applied(session, event.offset)
            self._progress()
            self._notices.append(event)
        self._carry_out(step, track, now)

    def _on_resumed(self, frame: Frame, now: float) -> None:
        track = self.tracks.get(string(frame, "session"))
        if track is None or not track.reading:
            return
        self._progress()
        if frame.get("mode") == "gone":
            self._refused(track, errors.server_error(frame.get("error")), now)
            return
        step, snapshot = track.resumed(frame)
        if snapshot is not None:
            self._window.applied(track.session, snapshot.offset)
            self._notices.append(snapshot)
        self._carry_out(step, track, now)

    def _on_ok(self, frame: Frame) -> None:
        self._progress()
        command_id = frame.get("id")
        if isinstance(command_id, str) and self._subscribes.pop(command_id, None) is None:
            self._answer(command_id, frame, None)

    def _on_error(self, frame: Frame, now: float) -> None:
        error = errors.server_error(frame.get("error"))
        command_id = frame.get("id")
        if not isinstance(command_id, str):
            self._connection_error = error
            if error.retry_after_ms is not None:
                self.dial_at = max(self.dial_at, now + error.retry_after_ms / 1000)
            self._notices.append(notices.Warned(error))
            return
        session = self._subscribes.pop(command_id, None)
        if session is not None:
            track = self.tracks.get(session)
            if track is not None and track.reading:
                self._refused(track, error, now)
            return
        command = self._commands.get(command_id)
        if command is None:
            return
        after_ms = error.retry_after_ms
        if policy.retries_itself(error) and after_ms is not None and command.attempts <= self.limits.retries_max:
            due_at = now + after_ms / 1000
            if command.deadline is None or due_at < command.deadline:
                command.due_at, command.in_flight = due_at, False
                self._in_flight -= 1
                self._send_commands()
                return
        self._answer(command_id, None, error)

    # Helpers

    def _carry_out(self, step: Step, track: Track, now: float) -> None:
        if step is Step.SUBSCRIBE:
            self._subscribe(track)
        elif step is Step.DISCONNECT:
            self._hang_up(now, policy.CLOSE_GOING_AWAY, f"{track.session}: events keep coming with gaps")

    def _subscribe(self, track: Track) -> None:
        self._subscribe_at.pop(track.session, None)
        command_id = self.new_id()
        self._subscribes[command_id] = track.session
        self._outbox.append({"type": "subscribe", "id": command_id, **track.request()})

    def _refused(self, track: Track, error: ServerError, now: float) -> None:
        if error.retryable:
            after_ms = error.retry_after_ms if error.retry_after_ms is not None else 1000
            self._subscribe_at[track.session] = now + after_ms / 1000
            return
        track.refuse(error)
        self._window.forget(track.session)
        self._notices.append(notices.ReadEnded(track.session))

    def _send_commands(self) -> None:
        """Send what waits, in the order in which it was made, as far as the server's bound on unanswered ones
        allows. What is said behind a message that may be refused for a moment (``queue_full``) waits for its answer:
        it must not stand before it.
        """
        if self.link is not Link.READY:
            return
        waited: set[object] = set()
        for command in self._commands.values():
            if self._in_flight >= self.limits.in_flight_max:
                return
            if command.body["type"] == "message.create":
                session = command.body.get("session")
                if session in waited:
                    continue
                if command.body.get("queue") is True or command.due_at is not None:
                    waited.add(session)
            if not command.in_flight and command.due_at is None:
                command.in_flight = True
                command.attempts += 1
                self._in_flight += 1
                self._outbox.append(command.body)

    def _answer(self, command_id: str, ok: Frame | None, error: SessileError | None) -> None:
        command = self._commands.pop(command_id, None)
        if command is None:
            return
        self._notices.append(notices.Answered(command_id, ok, error))
        if command.in_flight:
            self._in_flight -= 1
            self._send_commands()

    def _progress(self) -> None:
        """The connection was of use: the next trouble is a new one."""
        self._attempt = 0
        self._connection_error = None

    def _hang_up(self, now: float, code: int, reason: str) -> None:
        self._close = code
        self._dial_later(now, code, reason)

    def _dial_later(
        self, now: float, code: int, reason: str, at_least_s: float = 0.0, *, captive_portal: bool = False
    ) -> None:
        delay_s = max(policy.backoff_s(self._attempt, self.rng, self.limits), at_least_s, self.dial_at - now)
        self._attempt += 1
        self.link = Link.OFFLINE
        self.dial_at = now + delay_s
        self._reset_connection()
        self._notices.append(notices.Disconnected(code, reason, delay_s, captive_portal))
