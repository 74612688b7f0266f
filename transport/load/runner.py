"""Runs a load: arrivals of a Poisson process (open loop), or so many users at once (closed loop).

In an open loop nothing waits for an answer before the next arrival, so that a slow server meets the load that it would
meet. In a closed loop each user begins anew when its dialogue has ended, and waits as long as Retry-After says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from transport.load.measurements import Measurements, RequestResult, result_of
from transport.load.stream_client import StreamClient, StreamedAnswer
from transport.load.workload import Dialogue, Workload


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much and how long."""

    model: str
    rate: float = 0.0
    """Dialogues that arrive in a second; 0: a closed loop."""
    users: int = 8
    """Of a closed loop."""
    seconds: float = 30.0
    """0: until it is stopped."""
    requests: int = 0
    """0: as many as there is time for."""


class LoadRunner:
    """One run of a load."""

    def __init__(
        self,
        client: StreamClient,
        workload: Workload,
        measurements: Measurements,
        plan: LoadPlan,
        clock: Callable[[], float],
        listener: Callable[[RequestResult], None] = lambda _: None,
    ) -> None:
        """`listener` gets every result."""
        self._client = client
        self._workload = workload
        self._measurements = measurements
        self._plan = plan
        self._clock = clock
        self._listener = listener
        self._stopping = asyncio.Event()
        self._started = 0
        self.start = clock()
        self.latest_s = 0.0
        """By how much an arrival was late at most: more than some ms, and this machine is what is measured."""

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self.start

    def stop(self) -> None:
        """No new requests; those under way go on."""
        self._stopping.set()

    async def run(self) -> None:
        """Until time or requests are up, or `stop`; and then until what is under way has ended."""
        self.start = self._clock()
        if self._plan.seconds:
            timer = asyncio.get_running_loop().call_later(self._plan.seconds, self.stop)
        try:
            await (self._open_loop() if self._plan.rate else self._closed_loop())
        finally:
            self.stop()
            if self._plan.seconds:
                timer.cancel()

    async def _open_loop(self) -> None:
        due = self._clock()
        async with asyncio.TaskGroup() as arrivals:
            while not self._stopping.is_set():
                due += self._workload.next_gap(self._plan.rate)
                await self._pause(due - self._clock())
                if self._stopping.is_set():
                    break
                self.latest_s = max(self.latest_s, self._clock() - due)
                arrivals.create_task(self._converse(self._workload.next_dialogue()))

    async def _closed_loop(self) -> None:
        async with asyncio.TaskGroup() as users:
            for _ in range(self._plan.users):
                users.create_task(self._user())

    async def _user(self) -> None:
        while not self._stopping.is_set():
            answer = await self._converse(self._workload.next_dialogue())
            if answer is not None and answer.error:
                # Else a server that refuses at once would get requests without a pause.
                await self._pause(0.1 if answer.retry_after_s is None else answer.retry_after_s)

    async def _converse(self, dialogue: Dialogue) -> StreamedAnswer | None:
        """The dialogue's turns; the last answer. Ends with the first that failed."""
        messages: list[dict[str, Any]] = []
        answer = None
        for number, turn in enumerate(dialogue.turns):
            if number:
                await self._pause(turn.think_s)
            if self._stopping.is_set():
                break
            messages.append({"role": "user", "content": turn.prompt})
            answer = await self._request(dialogue, messages, turn.output_tokens)
            if answer.error:
                break
            messages.append({"role": "assistant", "content": "".join(answer.texts) or "…"})
        return answer

    async def _request(self, dialogue: Dialogue, messages: list[dict[str, Any]], output_tokens: int) -> StreamedAnswer:
        self._started += 1
        if self._started == self._plan.requests:
            self.stop()
        body = request_body(self._plan.model, messages, output_tokens, tools=dialogue.tools)
        self._measurements.in_flight += 1
        try:
            answer = await self._client.complete(body)
        finally:
            self._measurements.in_flight -= 1
        result = result_of(dialogue.kind, answer, self.start)
        self._measurements.add(result)
        self._listener(result)
        return answer

    async def _pause(self, seconds: float) -> None:
        """Ends early when the run does."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()


def request_body(
    model: str, messages: list[dict[str, Any]], output_tokens: int, *, tools: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """As every OpenAI-compatible server takes it."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = tools
    return body
