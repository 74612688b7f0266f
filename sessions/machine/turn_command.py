"""A whole turn in one command, for doors whose clients know no sessions: the session, its history and the answer.

The middle of `sessions.machine.machine`. Everything is looked at before anything is written: a turn that is refused has
left nothing behind. Does not know why the door chose this session and this parent.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from sessions.billing.prices import PriceBook
from sessions.machine import item_tree
from sessions.machine.inputs_effects import Prepared
from sessions.machine.responses import Responses, item_ids_of, response_id_of
from sessions.machine.state import State, stands_below
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import BadInput, Conflict, NotFound
from sessions.model.types import (
    CallId,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemId,
    Message,
    OutputText,
    Principal,
    Refusal,
    ResponseId,
)

ERASED = "deleted"  # the category of what a client had erased


class TurnCommands(Responses):
    """How sessions begin, and turns that bring everything along."""

    def __init__(
        self,
        state: State,
        *,
        fingerprint: str,
        default_model: str,
        smaller_model: str = "",
        prices: PriceBook | None = None,
    ) -> None:
        super().__init__(state, fingerprint=fingerprint, smaller_model=smaller_model, prices=prices)
        self._default_model = default_model

    def _make_session(self, principal: Principal, settings: cm.SessionCreate | cm.SessionSettings) -> None:
        self.state.user = principal.user
        self.state.listed = settings.listed if isinstance(settings, cm.SessionSettings) else True
        info = ev.SessionInfo(
            model=settings.model or self._default_model,
            instructions=settings.instructions,
            tools=settings.tools,
            metadata=settings.metadata,
            title=settings.title,
            created_at=self._now,
        )
        self._put(ev.SessionCreated(info=info))

    def _parent(self, wanted: ItemId | None | msgspec.UnsetType) -> ItemId | None:
        if wanted is UNSET:
            return self.state.newest
        if wanted is not None and wanted not in self.state.items:
            raise NotFound("item_not_found", f"There is no item {wanted!r} in this session.", param="parent_id")
        return wanted

    def _response_id(self, principal: Principal, command_id: str) -> ResponseId:
        return response_id_of(self.state.key, principal, command_id)

    def goes_on(self, command: cm.ActorCommand) -> bool:
        """It brings all that a turn of the session waits for: that turn was let in when it began."""
        if not isinstance(command, cm.TurnCreate):
            return isinstance(command, cm.ToolOutput)
        answers = _answers(command)
        return any(answers.issuperset(turn.missing) for turn in self.state.awaiting.values())

    def _turn(self, principal: Principal, command: cm.TurnCreate, prepared: Sequence[Prepared | None]) -> cm.Ok:
        state = self.state
        after = command.after_response
        parent = self._parent(command.parent_id) if after is None else self._last_of(after)
        answers = _answers(command)
        turn = next(
            (
                turn
                for turn in state.awaiting.values()
                if answers.intersection(turn.missing) and stands_below(state, parent, turn.last)
            ),
            None,
        )
        blocked = item_tree.blocker(
            state,
            parent,
            implied=command.parent_id is UNSET and after is None,
            answering=turn.response_id if turn is not None else None,
        )
        if blocked is not None:
            raise busy_conflict(blocked[1])
        if turn is not None and (missing := set(turn.missing) - answers):
            raise BadInput("invalid_request", f"No tool output found for function call {min(missing)}.", param="input")
        if state.info is None:
            assert command.create is not None
            self._make_session(principal, command.create)
        else:
            self._settle(command)
        names = item_ids_of(state.key, principal, command)
        for index, (name, new) in enumerate(zip(names, command.items, strict=True)):
            item = self._new_item(name, new, parent)
            self._item(item, prepared[index] if index < len(prepared) else None)
            parent = item.id
        offset, response_id = state.top, None
        if command.respond:
            response_id = self._response_id(principal, command.id)
            self._begin(
                response_id,
                parent,
                principal,
                cm.sampling_of(command),
                after=turn.response_id if turn is not None else None,
                metadata=command.metadata,
                request=command.request,
                model=turn.model if turn is not None else None,
            )
        elif turn is not None:
            self._next_in_line(turn.response_id, parent)
        return cm.Ok(
            id=command.id,
            session=state.key.session,
            item_id=parent if command.items else None,
            response_id=response_id,
            offset=offset,
        )

    def _settle(self, command: cm.TurnCreate) -> None:
        """Brings the session's instructions and tools to what the turn says."""
        info = self.state.info
        assert info is not None
        changed = info
        if command.instructions is not UNSET:
            changed = msgspec.structs.replace(changed, instructions=command.instructions)
        if command.tools is not UNSET:
            changed = msgspec.structs.replace(changed, tools=command.tools)
        if changed != info:
            self._put(ev.SessionUpdated(info=changed))

    def _last_of(self, response_id: ResponseId) -> ItemId:
        """The last item of a response, which the turn goes on from."""
        open_ = self.state.open.get(response_id)
        answer = self.state.answers.get(response_id)
        if open_ is not None:
            raise busy_conflict("response_in_progress")
        if answer is None:
            raise NotFound(
                "response_not_found", f"There is no response {response_id!r} here.", param="previous_response_id"
            )
        if not answer.items:
            raise Conflict(
                "invalid_request", "This response has no output to go on from.", param="previous_response_id"
            )
        return answer.items[-1]

    def _erase(self, command: cm.ResponseErase) -> cm.Ok:
        state, response_id = self.state, command.response_id
        if response_id in state.open:
            raise busy_conflict("response_in_progress")
        answer = state.answers.get(response_id)
        if answer is None:
            raise NotFound("response_not_found", f"There is no response {response_id!r} here.", param="response_id")
        spans: list[tuple[ItemId, int, int, str]] = []  # item, part, length, what stays
        for item in (state.items[item_id] for item_id in answer.items):
            if isinstance(item, Message):
                texts = [part.refusal if isinstance(part, Refusal) else part.text for part in item.content]
                spans += [(item.id, index, len(text), "") for index, text in enumerate(texts)]
            elif isinstance(item, FunctionCall):
                spans.append((item.id, 0, len(item.arguments), "{}"))  # still JSON, for templates and for clients
        of_none = ItemId(answer.items[0] if answer.items else response_id)
        for item_id, index, length, left in spans or [(of_none, 0, 0, "")]:
            self._put(
                ev.ContentRetracted(
                    response_id=response_id,
                    item_id=item_id,
                    content_index=index,
                    start=0,
                    end=length,
                    replacement=left,
                    category=ERASED,
                )
            )
        return cm.Ok(id=command.id, response_id=response_id, offset=state.top)

    def _new_item(self, name: ItemId, new: cm.NewItem, parent: ItemId | None) -> Item:
        match new:
            case cm.NewMessage():
                parts = cm.content_parts(new.content)
                return Message(
                    id=name,
                    parent_id=parent,
                    role=new.role,
                    content=tuple(OutputText(part.text) for part in parts) if new.role == "assistant" else parts,
                    status="completed",
                    created_at=self._now,
                )
            case cm.NewCall():
                return FunctionCall(
                    id=name,
                    parent_id=parent,
                    call_id=new.call_id,
                    name=new.name,
                    arguments=new.arguments,
                    status="completed",
                    created_at=self._now,
                )
            case cm.NewOutput():
                return FunctionCallOutput(
                    id=name,
                    parent_id=parent,
                    call_id=new.call_id,
                    output=new.output,
                    is_error=new.is_error,
                    created_at=self._now,
                )


def _answers(command: cm.TurnCreate) -> set[CallId]:
    return {item.call_id for item in command.items if isinstance(item, cm.NewOutput)}


def busy_conflict(code: str) -> Conflict:
    text = {
        "response_in_progress": "A response on this branch is in progress; wait for its end, or send `queue: true`.",
        "tools_pending": "A turn on this branch waits for tool outputs; send them, or send `queue: true`.",
    }[code]
    return Conflict(code, text, retryable=True, retry_after_ms=250)
