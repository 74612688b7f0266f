"""Classifies texts with a guard model: a language model that judges whether a text is safe, over HTTP or from a file.

`url` is an OpenAI-compatible endpoint (`/chat/completions`), `model_path` a GGUF that llama.cpp serves inside this
process. Either is given the policy's template with the text in it, and answers with one of two words. The score is how
likely the second one is, of the two: by the probabilities of the first token where the server returns them, else 0 or
1. Where the policy maps the words behind that one, the kind is in the finding's category.

A long text is judged in segments, as its worst. An image, which only an endpoint can judge, goes beside the template
with nothing in place of the text. Requests at the same time run as one batch in the server, up to `at_once`; more wait,
up to `waiting`, and beyond that a text is not judged. Nothing is sent twice, and whatever does not come as expected
within the deadline (late, away, another status, malformed) is `NotJudged`: a block fails closed, a flag open. No text
is kept or logged.

Source: the protocol of Llama Guard (Inan et al., 2023): `safe`, or `unsafe` and the categories' codes behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from inference.moderation.guard_models import GuardModel, GuardVerdict, open_guard_model
from inference.moderation.policy import GuardConfig
from inference.moderation.worker_client import NotJudged
from sessions.model.errors import SessileError

SEGMENT_CHARS: Final = 4_000  # code points that are judged at once
SEGMENTS_MAX: Final = 64
OVERLAP: Final = 200

Observe = Callable[[str, float], None]
"""Called for each text with the outcome (judged, late, failed, busy) and the seconds that it took."""

Judge = Callable[[], Awaitable[GuardVerdict]]
"""Judges one segment of a text, or an image."""

log = structlog.get_logger(__name__)


class GuardClient:
    """One guard of a policy file, with its bounds and deadlines. `close` ends what is under way."""

    def __init__(self, guard: GuardConfig, model: GuardModel, observe: Observe) -> None:
        self.guard = guard
        self._observe = observe
        self._model = model
        self._slots = asyncio.Semaphore(guard.at_once)
        self._tasks: set[asyncio.Task[GuardVerdict]] = set()
        self._segments = 0  # sent or waiting
        self._trouble: str | None = None
        self._closed = False

    @classmethod
    async def open(cls, guard: GuardConfig, observe: Observe = lambda outcome, seconds: None) -> GuardClient:
        """Opens the guard's model. Raises BadPolicy."""
        return cls(guard, await open_guard_model(guard), observe)

    @property
    def version(self) -> str:
        """The version of the guard's model and configuration."""
        digest = hashlib.sha256(msgspec.json.encode(self.guard, order="sorted")).hexdigest()[:8]
        return f"{self._model.version}/{digest}"

    async def close(self) -> None:
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._model.close()

    def classify(self, text: str, timeout_s: float) -> asyncio.Future[GuardVerdict]:
        return self._start([partial(self._model.judge, segment) for segment in split_segments(text)], timeout_s)

    def classify_image(self, image_url: str, timeout_s: float) -> asyncio.Future[GuardVerdict]:
        """Judges an image, which is a data URL."""
        return self._start([partial(self._model.judge_image, image_url)], timeout_s)

    def _start(self, segments: Sequence[Judge], timeout_s: float) -> asyncio.Future[GuardVerdict]:
        task = asyncio.get_running_loop().create_task(self._judge(segments, timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _judge(self, segments: Sequence[Judge], timeout_s: float) -> GuardVerdict:
        clock = asyncio.get_running_loop().time
        begun_at, outcome = clock(), "failed"
        try:
            async with asyncio.timeout(timeout_s):
                verdict = await self._worst(segments)
            outcome = "judged"
            self._report_trouble(None)
            return verdict
        except TimeoutError as error:
            outcome = "late"
            self._report_trouble(outcome)
            raise NotJudged("late") from error
        except _Busy:
            outcome = "busy"
            raise
        except SessileError as error:
            self._report_trouble(error.code)
            raise NotJudged("the guard does not answer") from error
        except NotJudged as error:
            self._report_trouble(str(error))
            raise
        except asyncio.CancelledError:
            outcome = "late"
            raise
        finally:
            self._observe(outcome, clock() - begun_at)

    def _report_trouble(self, trouble: str | None) -> None:
        """Logs when the guard begins to fail and when it recovers, not every text between."""
        if (trouble is None) is (self._trouble is None):
            return
        self._trouble = trouble
        if trouble is None:
            log.info("guard_recovered", guard=self.version)
        else:
            log.warning("guard_failed", guard=self.version, error=trouble)

    async def _worst(self, segments: Sequence[Judge]) -> GuardVerdict:
        if self._closed:
            raise NotJudged("the guard is closed")
        if len(segments) > SEGMENTS_MAX:
            raise NotJudged("the text is too long for the guard")
        if self._segments + len(segments) > self.guard.waiting + self.guard.at_once:
            raise _Busy("too many texts wait for the guard")
        self._segments += len(segments)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._judge_segment(segment)) for segment in segments]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            self._segments -= len(segments)
        return max((task.result() for task in tasks), key=lambda verdict: verdict.score)

    async def _judge_segment(self, judge: Judge) -> GuardVerdict:
        async with self._slots:
            return await judge()


class _Busy(NotJudged):
    pass


def split_segments(text: str) -> list[str]:
    """Cuts a text into overlapping segments."""
    step = SEGMENT_CHARS - OVERLAP
    return [text[at : at + SEGMENT_CHARS] for at in range(0, max(1, len(text) - OVERLAP), step)]
