"""A bot behind a webhook: messages of a platform come in, answers stream out to where its people read them.

::

    async with Client(URL, api_key=KEY) as client, Bot(client, screen, inbox=FileInbox(FOLDER)) as bot:
        await bot.receive(event_id, conversation, text)    # from the webhook; then answer it with 200

* A delivery is answered once, however often the platform repeats it: its command's id follows from ``event_id``.
* ``receive`` returns when the message is in the log; what it raises means that the platform should deliver again.
* A conversation of the platform is one session, whose name follows from the bot's and the conversation's: every process
  of the bot finds it. Messages that come while an answer is written wait for their turn.
* A ``Screen`` is drawn at most every ``every_s``, with the whole text so far, and surely with the last one.
* With an inbox that outlives the process, a bot that was killed goes on in the same message of the platform.

Not promised: that a tool runs once when the process dies between its run and its answer, and that the very first
drawing is not repeated when it dies right behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ._fields import Sampling, Settings
from .client import Client
from .errors import Conflict, Lost, NotFound, ResponseFailed, SessionGone
from .response import Response
from .session import Session
from .store import json_path, write_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tool = Callable[[dict[str, Any]], Awaitable[str]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """A message of the platform. ``message``: the platform's name of what shows the answer, once there is one."""

    event_id: str
    conversation: str
    text: str
    message: str | None = None


class Screen(Protocol):
    """Where answers are shown. What it raises ends the drawing of that answer, and is logged."""

    async def post(self, conversation: str, text: str) -> str:
        """A new message; its name."""

    async def edit(self, conversation: str, message: str, text: str) -> None:
        """Replaces a message's text."""


class Inbox(Protocol):
    """Which deliveries were taken, and how far. Bounded by whoever implements it."""

    async def take(self, delivery: Delivery) -> bool:
        """Records a delivery; False if it is known already."""

    async def update(self, delivery: Delivery) -> None: ...

    async def finish(self, delivery: Delivery) -> None:
        """It is shown to its end; that it was stays known for a while."""

    async def forget(self, delivery: Delivery) -> None:
        """It was not taken after all: the platform will deliver it again."""

    async def unfinished(self) -> list[Delivery]: ...


class MemoryInbox:
    """For the life of the process; knows the last ``known_max`` deliveries."""

    def __init__(self, known_max: int = 10_000) -> None:
        self._known: OrderedDict[str, Delivery | None] = OrderedDict()
        self._known_max = known_max

    async def take(self, delivery: Delivery) -> bool:
        if delivery.event_id in self._known:
            return False
        self._known[delivery.event_id] = delivery
        while len(self._known) > self._known_max:
            self._known.popitem(last=False)
        return True

    async def update(self, delivery: Delivery) -> None:
        self._known[delivery.event_id] = delivery

    async def finish(self, delivery: Delivery) -> None:
        self._known[delivery.event_id] = None

    async def forget(self, delivery: Delivery) -> None:
        self._known.pop(delivery.event_id, None)

    async def unfinished(self) -> list[Delivery]:
        return [each for each in self._known.values() if each is not None]


class FileInbox:
    """One small file per delivery in a folder of one process; those older than ``keep_s`` go when it is opened."""

    def __init__(self, folder: str | Path, *, keep_s: float = 86_400.0) -> None:
        self._folder = Path(folder)
        self._keep_s = keep_s

    def _path(self, delivery: Delivery) -> Path:
        return json_path(self._folder, delivery.event_id)

    async def take(self, delivery: Delivery) -> bool:
        if self._path(delivery).exists():
            return False
        await self.update(delivery)
        return True

    async def update(self, delivery: Delivery) -> None:
        self._write(delivery, done=False)

    async def finish(self, delivery: Delivery) -> None:
        self._write(delivery, done=True)

    async def forget(self, delivery: Delivery) -> None:
        self._path(delivery).unlink(missing_ok=True)

    async def unfinished(self) -> list[Delivery]:
        deliveries: list[Delivery] = []
        files = [(path.stat().st_mtime, path) for path in self._folder.glob("*.json")]
        for changed, path in sorted(files):
            try:
                body = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:  # a damaged file is none
                continue
            match body:
                case {"event_id": str(), "conversation": str(), "text": str(), "message": str() | None, "done": bool()}:
                    if changed < time.time() - self._keep_s:
                        path.unlink(missing_ok=True)
                    elif not body.pop("done"):
                        deliveries.append(Delivery(**body))
                case _:  # somebody else's: a `FileStore` may have the same folder
                    pass
        return deliveries

    def _write(self, delivery: Delivery, *, done: bool) -> None:
        write_json(self._path(delivery), {**vars(delivery), "done": done})


class BotOptions(Sampling, total=False):
    """How a bot answers, beside the sampling. ``every_s``: between two drawings; ``waiting`` and ``failed``: what is
    shown before the first word, and after the last one of an answer that failed.
    """

    instructions: str | None
    model: str | None
    every_s: float
    waiting: str
    failed: str
    tool_rounds_max: int


class Bot:
    """Use it as an async context inside its client's. ``tools``: what the model may call, by name: the definition and
    what runs; every session that the bot makes is given them. Leaving it stops the drawing, and what was not shown to
    its end stays unfinished.
    """

    def __init__(
        self,
        client: Client,
        screen: Screen,
        *,
        name: str = "bot",
        tools: Mapping[str, tuple[Mapping[str, Any], Tool]] | None = None,
        inbox: Inbox | None = None,
        **options: Unpack[BotOptions],
    ) -> None:
        self._client = client
        self._screen = screen
        self._name = name
        self._tools = dict(tools or {})
        self._inbox: Inbox = inbox if inbox is not None else MemoryInbox()
        self._settings: Settings = {}
        if (instructions := options.pop("instructions", None)) is not None:
            self._settings["instructions"] = instructions
        if (model := options.pop("model", None)) is not None:
            self._settings["model"] = model
        if self._tools:
            self._settings["tools"] = [dict(definition) for definition, _ in self._tools.values()]
        self._every_s = options.pop("every_s", 1.0)
        self._waiting = options.pop("waiting", "…")
        self._failed = options.pop("failed", "Sorry, this answer failed.")
        self._tool_rounds_max = options.pop("tool_rounds_max", 8)
        self._sampling: Sampling = options
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted: dict[str, asyncio.Future[None]] = {}
        self._using: Counter[str] = Counter()  # deliveries under way by session
        self._making: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Bot:
        for delivery in await self._inbox.unfinished():
            self._start(delivery)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def session_of(self, conversation: str) -> str:
        """The name of a conversation's session."""
        return "bot_" + hashlib.sha256(f"{self._name}\0{conversation}".encode()).hexdigest()[:32]

    async def receive(self, event_id: str, conversation: str, text: str) -> bool:
        """Take a delivery; returns when it is in the log. False: it was known already. Raises SessileError where it
        could not be taken: then the platform should deliver it again."""
        delivery = Delivery(event_id, conversation, text)
        known = self._accepted.get(event_id)
        if known is None and await self._inbox.take(delivery):
            await asyncio.shield(self._start(delivery))
            return True
        if known is not None:
            await asyncio.shield(known)
        return False

    async def idle(self) -> None:
        """Wait until everything that was received is shown."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    # Inside

    def _start(self, delivery: Delivery) -> asyncio.Future[None]:
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        accepted.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._accepted[delivery.event_id] = accepted
        task = asyncio.create_task(self._serve(delivery, accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return accepted

    async def _serve(self, delivery: Delivery, accepted: asyncio.Future[None]) -> None:
        name = self.session_of(delivery.conversation)
        self._using[name] += 1
        session: Session | None = None
        try:
            session = await self._session(name)
            response = await session.send(
                delivery.text, queue=True, command_id=self._id(delivery, "send"), **self._sampling
            )
            accepted.set_result(None)
            await self._show(delivery, session, response)
            await self._inbox.finish(delivery)
        except Exception as error:
            if accepted.done():
                log.exception("delivery %s was not shown to its end", delivery.event_id)
            else:
                await self._inbox.forget(delivery)
                accepted.set_exception(error)
        finally:
            if not accepted.done():
                accepted.set_exception(Lost("the bot was closed"))
            del self._accepted[delivery.event_id]
            self._using[name] -= 1
            if not self._using[name]:
                del self._using[name]
                if session is not None:
                    await session.close()

    def _id(self, delivery: Delivery, what: str) -> str:
        return hashlib.sha256(f"{self._name}\0{delivery.event_id}\0{what}".encode()).hexdigest()[:40]

    async def _session(self, name: str) -> Session:
        """The session of a conversation, made where there is none."""
        lock = self._making.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                session = await self._client.session(name, wait=False)
                try:
                    return await session.caught_up()
                except SessionGone as error:
                    await session.close()
                    if error.code != "session_not_found":
                        raise
                try:
                    return await self._client.create_session(name, **self._settings)
                except Conflict:  # another process of the bot was faster
                    return await self._client.session(name)
        finally:
            if not lock.locked():
                self._making.pop(name, None)

    async def _show(self, delivery: Delivery, session: Session, response: Response) -> None:
        """Draws an answer, and those that follow its tool calls, to the end."""
        before = ""
        painter = _Painter(self._screen, delivery.conversation, delivery.message, self._every_s)
        if delivery.message is None:
            message = await painter.post(self._waiting)
            delivery = replace(delivery, message=message)
            await self._inbox.update(delivery)
        painting = asyncio.create_task(painter.run())
        try:
            for _ in range(self._tool_rounds_max):
                async for text in response.texts():
                    painter.show(before + text)
                try:
                    text = before + await response.text()
                except ResponseFailed as failure:
                    painter.show(f"{before}{failure.text}\n\n{self._failed}".strip())
                    return
                following = await self._call_tools(delivery, session, response)
                if following is None:
                    painter.show(text or self._waiting)
                    return
                before, response = f"{text}\n" if text else "", following
        finally:
            painter.finish()
            await painting

    async def _call_tools(self, delivery: Delivery, session: Session, response: Response) -> Response | None:
        """Runs what the answer calls; the answer that follows, if one does."""
        following: Response | None = None
        for call in response.tool_calls if self._tools else ():
            output, is_error = await self._run(str(call.data.get("name")), str(call.data.get("arguments")))
            call_id = str(call.data.get("call_id"))
            try:
                answer = await session.tool_output(
                    call_id, output, is_error=is_error, command_id=self._id(delivery, call_id)
                )
            except (Conflict, NotFound) as error:
                log.warning("the call %s was answered before: %s", call_id, error)
            else:
                following = answer.response or following
        return following

    async def _run(self, name: str, arguments: str) -> tuple[str, bool]:
        if name not in self._tools:
            return f"There is no tool {name!r}.", True
        _, tool = self._tools[name]
        try:
            return await tool(json.loads(arguments or "{}")), False
        except Exception as error:
            log.exception("tool %s failed", name)
            return f"{type(error).__name__}: {error}", True


class _Painter:
    """Draws the newest text, not too often, and the last one surely."""

    def __init__(self, screen: Screen, conversation: str, message: str | None, every_s: float) -> None:
        self._screen = screen
        self._conversation = conversation
        self._message = message
        self._every_s = every_s
        self._text: str | None = None
        self._changed = asyncio.Event()
        self._over = asyncio.Event()

    async def post(self, text: str) -> str:
        self._message = await self._screen.post(self._conversation, text)
        return self._message

    def show(self, text: str) -> None:
        self._text = text
        self._changed.set()

    def finish(self) -> None:
        self._over.set()
        self._changed.set()

    async def run(self) -> None:
        drawn: str | None = None
        while True:
            await self._changed.wait()
            self._changed.clear()
            over, text = self._over.is_set(), self._text
            if text is not None and text != drawn and self._message is not None:
                await self._screen.edit(self._conversation, self._message, text)
                drawn = text
            if over:
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), self._every_s)


__all__ = ["Bot", "Delivery", "FileInbox", "Inbox", "MemoryInbox", "Screen", "Tool"]
