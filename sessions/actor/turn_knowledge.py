"""Looks up the `knowledge` of a turn: passages for a user's message, which stand in front of its words in the log.

    words, filtered ─► stores that the principal may search ─► passages, filtered ─► tokens of passages and words

So what was found belongs to its turn, and prompts of later turns begin as this one did. A turn's own `knowledge` is
used in place of its session's. Whatever is late, dead, gone or refused is left out, and `skipped` says why.

Whenever an answer begins, the actor looks for documents that are deleted by now (`deleted_documents`), and the machine
takes their passages out of the log. While the index does not answer nobody knows of them, and prompts keep them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from sessions.actor.prompt_filter import PromptFilter
from sessions.machine.inputs_and_effects import DocumentsDeleted, Start, Step
from sessions.machine.state import State
from sessions.model import commands as cm
from sessions.model.errors import BadInput, NotFound
from sessions.model.types import InputPassage, Principal, Role, SearchScope
from sessions.model.verdicts import Finding
from sessions.retrieval.filters import parse_filter
from sessions.retrieval.scoped_search import CHARACTERS_MAX, ScopedSearch
from sessions.retrieval.vector_stores import Passage
from sessions.turn.past_texts import Continuing, PromptText, texts_before

QUERY_CHARACTERS_MAX: Final = 2_000  # of a message; of a longer one the end is searched for


async def check_knowledge(
    scope: SearchScope | None | UnsetType, search: ScopedSearch | None, principal: Principal
) -> None:
    """Raises BadInput for a scope with wrong filters, or if there is nothing to search; NotFound for a store that the
    principal may not name."""
    if not isinstance(scope, SearchScope):
        return
    if search is None:
        raise BadInput("invalid_request", "This server has no vector stores: see docs/retrieval.md.", param="knowledge")
    _check_filters(scope)
    try:
        await search.check(principal, scope)
    except NotFound as error:
        raise _about_stores(error) from None


async def deleted_documents(search: ScopedSearch | None, state: State, step: Step) -> DocumentsDeleted | None:
    """Returns the documents that are deleted by now and have passages in the session, if the step begins an answer;
    None if there are none."""
    if search is None or not state.quoting or not any(isinstance(effect, Start) for effect in step.effects):
        return None
    deleted = await search.deleted(state.key.tenant, tuple(state.quoting))
    return DocumentsDeleted(tuple(deleted)) if deleted else None


class TurnKnowledge:
    """Looks up passages for one command. `passage_filter` makes the filter for them; `window` is the length of the
    model's context window in tokens."""

    def __init__(
        self,
        principal: Principal,
        state: State,
        search: ScopedSearch | None,
        passage_filter: Callable[[], PromptFilter],
        window: int,
    ) -> None:
        self._principal = principal
        self._state = state
        self._search = search
        self._passage_filter = passage_filter
        self._characters_max = min(CHARACTERS_MAX, window // 2)  # an eighth of a small window, in usual tokens
        self.skipped: dict[str, str] = {}
        self.findings: list[Finding] = []  # in the passages, of their filters

    async def passages(self, command: cm.ActorCommand, role: Role, words: str) -> tuple[InputPassage, ...]:
        """Returns the passages for a message with these words. Raises BadInput and NotFound for a scope that the
        command itself names."""
        scope, is_named = self._scope_of(command, role)
        query = words.strip()[-QUERY_CHARACTERS_MAX:]
        if is_named and (not query or self._search is None):
            await check_knowledge(scope, self._search, self._principal)
        if scope is None or not query:
            return ()
        if self._search is None:
            self.skipped["vectors"] = "failed"
            return ()
        _check_filters(scope)
        find = self._search.find(self._principal, scope, query, named=is_named, characters_max=self._characters_max)
        try:
            retrieved = await find
        except NotFound as error:
            raise _about_stores(error) from None
        self.skipped |= {str(stage): str(reason) for stage, reason in retrieved.reasons.items()}
        return await self._filtered([_part(*each) for each in enumerate(retrieved.passages, 1)], command, words)

    def _scope_of(self, command: cm.ActorCommand, role: Role) -> tuple[SearchScope | None, bool]:
        """Returns what is to be searched for a message, and whether the command itself names it."""
        named = command.knowledge if isinstance(command, cm.MessageTurn) else UNSET
        responds = isinstance(command, cm.MessageCreate | cm.MessageEdit | cm.TurnCreate) and command.respond
        if isinstance(named, SearchScope):
            if role != "user" or not responds:
                raise BadInput("invalid_request", "Only a user's message that is answered has it.", param="knowledge")
            return named, True
        info = self._state.info
        if named is None or info is None or info.knowledge is UNSET or role != "user" or not responds:
            return None, False
        return info.knowledge, False

    async def _filtered(
        self, passages: Sequence[InputPassage], command: cm.ActorCommand, words: str
    ) -> tuple[InputPassage, ...]:
        """Returns the passages filtered like outputs of tools: all as one text, and each by itself if that is not left
        as it is. Those that filters refuse are left out."""
        texts = self._passage_filter()
        if not passages or not texts.active:
            return tuple(passages)
        before = texts_before(self._state, command) if isinstance(command, Continuing) else []
        texts.follow([*before, PromptText(words, False)])
        kept = []
        joined = "".join(passage.text for passage in passages)
        if await _unless_refused(texts.text(joined)) == joined:
            self.findings += texts.findings
            return tuple(passages)
        of_joined, texts.findings = texts.findings, []  # those in single passages will be found again
        for passage in passages:
            text = await _unless_refused(texts.text(passage.text))
            if text is None:
                self.skipped["passages"] = "refused"
            else:
                kept.append(msgspec.structs.replace(passage, text=text))
        self.findings += texts.findings or of_joined
        return tuple(kept)


async def _unless_refused(filtered: Awaitable[str]) -> str | None:
    """Returns a filtered text; None if filters refuse it."""
    try:
        return await filtered
    except BadInput as error:
        if error.code != "content_filter":
            raise
        return None


def _check_filters(scope: SearchScope) -> None:
    if scope.filters is not None:
        parse_filter(scope.filters, param="knowledge.filters")


def _about_stores(error: NotFound) -> NotFound:
    error.param = "knowledge.vector_store_ids"
    return error


def _part(number: int, passage: Passage) -> InputPassage:
    """Returns a passage as a part of a message. Its text says how it is cited, so that it can be read, and taken out,
    by itself."""
    name = " ".join(passage.filename.split()).replace("[", "(").replace("]", ")")
    return InputPassage(
        number=number,
        file_id=passage.file,
        filename=passage.filename,
        start=passage.start,
        end=passage.end,
        score=round(passage.score, 4),
        text=f"[Passage of {name}, to be cited as [{number}]]\n{passage.text}\n[End of passage]\n",
    )
