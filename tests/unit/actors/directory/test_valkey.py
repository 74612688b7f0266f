"""What a directory on a server refuses to run on, and which errors its callers get."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import AuthenticationError, ResponseError

from actors.directory.pipelined_connection import NotSent, ReplyLost
from actors.directory.valkey import ValkeyDirectory
from sessions.model.errors import BadInput, OutcomeUnknown, SessileError, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionId, SessionKey, TenantId
from sessions.ports import Owner
from tests.support.virtual_time import outcome

KEY = SessionKey(TenantId("t"), SessionId("s"))
OWNER = Owner(ReplicaId("r1"), "i", ActivationId("a"))
INFO = b"redis_version:7.2.4\r\n"


class Servers:
    together = True

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def open(self) -> None:
        if self.answers and isinstance(self.answers[0], Exception):
            raise self.answers.pop(0)

    async def close(self) -> None:
        pass

    async def call(self, key: str, *words: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def over(*answers: Any, opened: bool = True) -> ValkeyDirectory:
    directory = ValkeyDirectory("redis://127.0.0.1")
    directory._servers = Servers(*((INFO,) if opened else ()), *answers)  # type: ignore[assignment]
    if opened:
        await directory.open()
    return directory


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"redis_version:6.2.1\r\n", BadInput, "7.0"),
        (INFO + b"cluster_enabled:1\r\n", BadInput, "redis\\+cluster"),
        (NotSent("away"), Unavailable, "does not answer"),
        (caused(NotSent("no"), AuthenticationError("WRONGPASS")), BadInput, "name or password"),
    ],
)
async def test_a_server_that_cannot_be_the_directory_is_refused_with_a_reason(
    answer: Any, kind: type[SessileError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await (await over(answer, opened=False)).open()


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [(NotSent("away"), Unavailable), (ReplyLost("gone"), OutcomeUnknown), (ResponseError("x"), SessileError)],
)
async def test_errors_say_whether_a_write_may_have_happened(trouble: Exception, kind: type[SessileError]) -> None:
    directory = await over(trouble)
    error = await outcome(directory.release(KEY, OWNER))
    assert isinstance(error, kind)
    assert isinstance(error, OutcomeUnknown) == isinstance(trouble, ReplyLost)


async def test_a_reading_is_repeated_once_and_has_no_unknown_outcome() -> None:
    assert await (await over(ReplyLost("gone"), [4])).locate(KEY) is None
    error = await outcome((await over(ReplyLost("gone"), ReplyLost("gone"))).locate(KEY))
    assert isinstance(error, Unavailable) and not isinstance(error, OutcomeUnknown)
