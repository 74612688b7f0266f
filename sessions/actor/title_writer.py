"""Writes a title for a session that has none, after one of its first answers: the model's, or else the first words of
the question.

The model gets the conversation as its next turn would have it, so that nearly all of the prompt is in the session's KV,
and the turn that follows cuts off what was added. It runs behind everybody (`PRIORITY`), not at all while turns wait or
brownout allows no extras, and is cancelled when a turn of the session comes; after the next answer it is tried again.
It is not billed. A title is an output: the filters of the tenant's policy judge it, and a title on which they act is
thrown away. If the model gives none, the beginning of the first question is taken, which filters have let in.

Decides nothing about the log: `TitleWritten` is one input of the machine among others, and a title that a user has set
meanwhile is kept.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
import structlog
from msgspec import UNSET

from sessions.actor.actor_context import ActorContext
from sessions.actor.weak_calls import WeakCall
from sessions.machine.inputs_and_effects import Step, TitleWritten
from sessions.machine.responses import derive
from sessions.machine.state import State
from sessions.model.errors import SessileError
from sessions.model.events import Record, Terminal
from sessions.model.generation import BACKGROUND_PRIORITY, Chunk, GenerationRequest
from sessions.model.types import Message, Principal, ResponseId, Sampling, Tokens
from sessions.ports import ChatMessage, FilterSet
from sessions.turn.ledger import Ledger
from sessions.turn.screening import screened

PROMPT: Final = (
    "Write a title for this conversation, of at most six words, in the language of the conversation. Answer with the"
    " title and nothing else."
)
TOKENS_MAX: Final = 24
LENGTH_MAX: Final = 60  # code points
TITLE_S: Final = 20.0
ANSWERS_MAX: Final = 3  # a session that went on for longer without a title keeps none
PRIORITY: Final = BACKGROUND_PRIORITY

_LABEL: Final = re.compile(r"^\W*(?:title|titel)\W*:\s*", re.IGNORECASE)
_EMPHASIS: Final = re.compile(r"\*\*|__|`")
_AROUND: Final = " \t\"'`*_#«»„“”‚‘’.:;-"
_ODD: Final = re.compile(r"[<>{}\[\]|\\]")  # of markup, or of a model that thinks aloud

log = structlog.get_logger(__name__)


def calls_for_title(state: State, written: Sequence[Record]) -> bool:
    """Returns whether a session is to get a title now, because these records end one of its answers. After answers
    requested over OpenAI's API it gets none, since those clients show no list with titles."""
    info = state.info
    if info is None or info.title is not None or not state.listed or state.deleted or state.busy:
        return False
    ended = next((record.event for record in reversed(written) if isinstance(record.event, Terminal)), None)
    if ended is None or ended.response.request is not UNSET or len(state.answers) > ANSWERS_MAX:
        return False
    details = ended.response.incomplete_details or {}
    return ended.response.status != "failed" and details.get("reason") != "content_filter"


class Titles:
    """Has a session's title written after its answers, for its actor. `post` is called with the written title."""

    def __init__(self, writer: TitleWriter, post: Callable[[TitleWritten], None]) -> None:
        self._writer = writer
        self._post = WeakCall(post)
        self._task: asyncio.Task[None] | None = None

    def consider(self, step: Step) -> None:
        """Begins to write a title after an answer, unless the session has one."""
        state, context = self._writer.state, self._writer.context
        titles = context.limits.titles
        if titles is None or (self._task is not None and not self._task.done()):
            return
        if calls_for_title(state, step.records) and titles(state.key.tenant):
            self._task = context.spawn(self._write(step.usage[-1].principal))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _write(self, principal: Principal) -> None:
        written = await self._writer.write(principal)
        if written is not None:
            self._post(written)


class TitleWriter(msgspec.Struct, frozen=True):
    """Writes the title of one session."""

    state: State
    ledger: Ledger
    context: ActorContext

    async def write(self, principal: Principal) -> TitleWritten | None:
        """Returns a title by the model, or else from the question's first words; None if there are none. Raises nothing
        but CancelledError."""
        at, title, source = self.state.top, "", "model"  # or: words
        try:
            async with asyncio.timeout(TITLE_S):
                title = await self._of_model(principal)
        except (SessileError, TimeoutError) as error:
            log.info("title_not_written", session=self.state.key.session, error=str(error))
        except Exception:  # the shell's boundary: whatever an engine or a filter does, the session goes on
            log.exception("title_failed", session=self.state.key.session)
        if not title:
            title, source = first_words(self._question()), "words"
        if not title:
            return None
        self.context.metrics.titles.add(source)
        return TitleWritten(title, at)

    async def _of_model(self, principal: Principal) -> str:
        engine, admission = self.context.engine, self.context.limits.admission
        if admission is not None and not admission.gives_extras:
            return ""
        stats, info = engine.stats(), engine.info
        if stats.waiting or stats.running >= stats.slots:
            return ""
        prompt = await self.ledger.requested(self.state.newest, ChatMessage(role="user", text=PROMPT))
        if len(prompt) + TOKENS_MAX > info.context_window:
            return ""
        text = ""
        async with aclosing(engine.generate(self._request(prompt, principal))) as stream:  # type: ignore[type-var]
            async for part in stream:
                if isinstance(part, Chunk):
                    text += part.text
                    if "\n" in text.lstrip():
                        break
        title = cleaned(text)
        return title if title and await passes(self.context.filters, principal, title) else ""

    def _request(self, prompt: Tokens, principal: Principal) -> GenerationRequest:
        key = self.state.key
        return GenerationRequest(
            key=key,
            response_id=ResponseId(derive("title", key.tenant, key.session, str(self.state.top))),
            generation=1,
            prompt=prompt,
            sampling=Sampling(temperature=0.0),
            seed=0,
            max_tokens=TOKENS_MAX,
            priority=PRIORITY,
            weight=self.context.limits.share(principal).weight,
            images=self.ledger.images,
        )

    def _question(self) -> str:
        for item in self.state.items.values():
            if isinstance(item, Message) and item.role == "user" and item.words.strip():
                return item.words
        return ""


async def passes(filters: FilterSet, principal: Principal, title: str) -> bool:
    """Returns whether the output filters let a whole title through unchanged."""
    return await screened(filters, principal, title) == title


def cleaned(text: str) -> str:
    """Returns the first line of a model's text as a title, without label and markup; "" if it is no title."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    title = _EMPHASIS.sub("", _one_line(_LABEL.sub("", line))).strip(_AROUND)
    if _ODD.search(title) or not any(char.isalnum() for char in title):
        return ""
    return _cut(title)


def first_words(text: str) -> str:
    return _cut(_one_line(text))


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * LENGTH_MAX]).split())


def _cut(title: str) -> str:
    """Returns at most `LENGTH_MAX` code points of a title, cut between words where possible."""
    if len(title) <= LENGTH_MAX:
        return title
    kept = title[: LENGTH_MAX - 1]
    head, space, _ = kept.rpartition(" ")
    return f"{head if space and len(head) > LENGTH_MAX // 2 else kept}…"
