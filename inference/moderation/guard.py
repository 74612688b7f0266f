"""A guard model as a classifier: a language model that is asked whether a text is safe, over HTTP or from a file.

`url` is an OpenAI-compatible endpoint (`/chat/completions`), `model_path` a GGUF that llama.cpp serves inside this
process. Either is given the policy's template with the text in it, and answers with one of two words. The score is how
likely the second one is, of the two: by the probabilities of the first token where the server tells them, else 0 or 1.
Where the policy maps what the answer says behind that word, its kind is in the finding's category.

A long text is judged in stretches, as its worst. What is asked at the same time runs as one batch in the server, up to
`at_once`; more waits, up to `waiting`, and beyond that is not judged. Nothing is asked twice, and whatever does not
come as expected within the deadline (late, away, another status, rubbish) is `NotJudged`: a block fails closed, a flag
open. No text is kept or logged.

Source: the protocol of Llama Guard (Inan et al., 2023): `safe`, or `unsafe` and the categories' codes behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from inference.moderation.guard_models import GuardModel, GuardVerdict, LocalGuard, RemoteGuard
from inference.moderation.policy import GuardConfig
from inference.moderation.worker_client import NotJudged
from sessions.model.errors import SessileError

STRETCH: Final = 4_000  # code points that are judged at once
STRETCHES_MAX: Final = 64
OVERLAP: Final = 200

log = structlog.get_logger(__name__)


class GuardClient:
    """One guard of a policy file. `start` before anything else; `close` ends what is under way."""

    def __init__(self, guard: GuardConfig, observe: Callable[[str, float], None] = lambda how, seconds: None) -> None:
        """`observe` hears how each text came out (judged, late, failed, busy) and how long it took."""
        self.guard = guard
        self._observe = observe
        self._backend: GuardModel = RemoteGuard(guard) if guard.url else LocalGuard(guard)
        self._slots = asyncio.Semaphore(guard.at_once)
        self._asked: set[asyncio.Task[GuardVerdict]] = set()
        self._stretches = 0  # asked and not answered
        self._trouble: str | None = None

    @property
    def version(self) -> str:
        """Of its model and of all that the policy says of it."""
        digest = hashlib.sha256(msgspec.json.encode(self.guard, order="sorted")).hexdigest()[:8]
        return f"{self._backend.version}/{digest}"

    async def start(self) -> None:
        await self._backend.start()

    async def close(self) -> None:
        for task in tuple(self._asked):
            task.cancel()
        if self._asked:
            await asyncio.wait(self._asked)
        await self._backend.close()

    def classify(self, text: str, timeout_s: float) -> asyncio.Future[GuardVerdict]:
        task = asyncio.get_running_loop().create_task(self._judge(text, timeout_s))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task

    async def _judge(self, text: str, timeout_s: float) -> GuardVerdict:
        clock = asyncio.get_running_loop().time
        begun_at, how = clock(), "failed"
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._worst(split_segments(text))
            how = "judged"
            self._report_trouble(None)
            return found
        except TimeoutError as error:
            how = "late"
            self._report_trouble(how)
            raise NotJudged("late") from error
        except _Busy:
            how = "busy"
            raise
        except SessileError as error:
            self._report_trouble(error.code)
            raise NotJudged("the guard does not answer") from error
        except NotJudged as error:
            self._report_trouble(str(error))
            raise
        except asyncio.CancelledError:
            how = "late"
            raise
        finally:
            self._observe(how, clock() - begun_at)

    def _report_trouble(self, trouble: str | None) -> None:
        """Logs when it begins to fail and when it is well again, not every text between."""
        if (trouble is None) is (self._trouble is None):
            return
        self._trouble = trouble
        if trouble is None:
            log.info("guard_well", guard=self.version)
        else:
            log.warning("guard_failed", guard=self.version, error=trouble)

    async def _worst(self, pieces: Sequence[str]) -> GuardVerdict:
        if len(pieces) > STRETCHES_MAX:
            raise NotJudged("the text is too long for the guard")
        if self._stretches + len(pieces) > self.guard.waiting + self.guard.at_once:
            raise _Busy("too many texts wait for the guard")
        self._stretches += len(pieces)
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._one(piece)) for piece in pieces]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            self._stretches -= len(pieces)
        return max((task.result() for task in asked), key=lambda judged: judged.score)

    async def _one(self, piece: str) -> GuardVerdict:
        async with self._slots:
            return await self._backend.judge(piece)


class _Busy(NotJudged):
    pass


def split_segments(text: str) -> list[str]:
    step = STRETCH - OVERLAP
    return [text[at : at + STRETCH] for at in range(0, max(1, len(text) - OVERLAP), step)]
