"""What a close code, a refused handshake or an answer means for trying again: the tables of protocol.md, 6.

Pure: chance comes as an argument.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .errors import Busy, ServerError, SessileError

#: reconnecting would meet the same refusal: stop and report to the program
FATAL_CLOSES = {
    1002: "protocol error",
    1003: "unsupported data",
    1007: "data that is not the agreed encoding",
    1008: "policy violation",
    1009: "message too big",
    4400: "bad frame",
    4401: "unauthorised",
    4403: "forbidden",
}
#: these say themselves that a reconnect helps; any code in neither set is treated like 1006
RETRY_CLOSE_CODES = frozenset({1001, 1006, 1011, 1012, 1013, 4402, 4408, 4412})
CLOSE_NORMAL = 1000
CLOSE_GOING_AWAY = 1001
CLOSE_ABNORMAL = 1006
CLOSE_HEARTBEAT = 4412
_RETRY_STATUSES = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Limits:
    """Every time and size that the client keeps to."""

    command_timeout_s: float | None = 60.0
    commands_max: int = 1024
    #: sent and unanswered at a time; a server refuses more than 32, subscribes among them
    in_flight_max: int = 24
    retries_max: int = 4
    dial_timeout_s: float = 10.0
    ready_timeout_s: float = 10.0
    heartbeat_ms: int = 25_000
    ack_after_s: float = 1.0
    backoff_first_s: float = 0.25
    backoff_max_s: float = 20.0
    goaway_grace_s: float = 5.0
    frame_bytes_max: int = 64 * 1024 * 1024
    command_bytes_max: int = 1024 * 1024
    events_max: int = 4096


class DialError(SessileError):
    """A connection could not be opened. ``http_status`` where the server answered without upgrading."""

    def __init__(
        self,
        message: str,
        *,
        http_status: int | None = None,
        retry_after_s: float = 0.0,
        captive_portal: bool = False,
    ) -> None:
        super().__init__(message)
        #: somebody else answered in the server's place
        self.captive_portal = captive_portal
        self.http_status = http_status
        self.retry_after_s = retry_after_s

    @property
    def fatal(self) -> bool:
        """A status that another attempt will not change; no answer at all, 429 and 5xx are worth one."""
        return self.http_status is not None and is_final_status(self.http_status)


def is_final_status(status: int) -> bool:
    return 400 <= status < 500 and status not in _RETRY_STATUSES


def backoff_s(attempt: int, rng: random.Random, limits: Limits) -> float:
    """Full jitter: anywhere from nothing to 0.25 s * 2**attempt, at most 20 s."""
    ceiling = min(limits.backoff_max_s, limits.backoff_first_s * 2.0 ** min(attempt, 16))
    return rng.random() * ceiling


def retries_itself(error: ServerError) -> bool:
    """Whether the client waits and repeats the command by itself; a busy branch is the program's to decide."""
    return error.retryable and error.retry_after_ms is not None and not isinstance(error, Busy)
