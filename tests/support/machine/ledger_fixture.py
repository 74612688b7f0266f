"""A machine with a ledger beside it, as an actor has, and the reference that its prompts are held against."""

from __future__ import annotations

from inference.simulated import SimulatedTokenizer
from sessions.actor.input_pipeline import InputPreparation
from sessions.machine import event_writer, inputs_and_effects, item_tree
from sessions.metrics import Histogram
from sessions.model import commands as cm
from sessions.model.generation import EngineInfo
from sessions.model.types import LOCAL_PRINCIPAL, FunctionCall, ItemId, Message, ResponseId, Tokens, pack_tokens
from sessions.ports import ChatMessage
from sessions.turn.keyword_filter import KeywordFilterSet
from sessions.turn.ledger import Ledger
from tests.support.machine.machine_fixture import SESSION, Ground


class Counting(SimulatedTokenizer):
    """Says what it was asked to tokenise; can pass for another vocabulary."""

    def __init__(self, fingerprint: str | None = None) -> None:
        super().__init__()
        self.asked: list[str] = []
        if fingerprint is not None:
            self.fingerprint = fingerprint

    async def message(self, message: ChatMessage) -> Tokens:
        self.asked.append(message.text)
        return await super().message(message)

    async def text(self, text: str) -> Tokens:
        self.asked.append(text)
        return await super().text(text)


def info(window: int = 1_000) -> EngineInfo:
    return EngineInfo(
        model="sim", build="b", model_fingerprint="m", context_window=window, slots=1, sampling=frozenset()
    )


class Desk(Ground):
    """A machine with a ledger beside it, as an actor has."""

    def __init__(self, *, window: int = 1_000, **more: object) -> None:
        self.tokenizer = Counting()
        super().__init__(fingerprint=self.tokenizer.fingerprint)
        self.window = window
        self.create(**more)
        self.ledger = Ledger(self.state, self.tokenizer, info(window))

    def reload(self, tokenizer: Counting | None = None) -> None:
        """Another activation, perhaps with another model."""
        self.tokenizer = tokenizer or self.tokenizer
        self.fingerprint = self.tokenizer.fingerprint
        self.activate()
        self.ledger = Ledger(self.state, self.tokenizer, info(self.window))

    async def send(self, command: cm.MessageCreate | cm.MessageEdit | cm.ToolOutput) -> cm.Ok:
        digest = cm.command_digest(command)
        preparation = InputPreparation(LOCAL_PRINCIPAL, self.ledger, KeywordFilterSet(), 10_000, Histogram(()))
        ready, prepared = await preparation.one(command)
        answer = self.input(inputs_and_effects.Command(LOCAL_PRINCIPAL, ready, digest, prepared)).answer
        assert isinstance(answer, cm.Ok), answer
        return answer

    async def ask(self, text: str, /, **more: object) -> ResponseId:
        answer = await self.send(cm.MessageCreate(id=self.name(), session=SESSION, content=text, **more))  # type: ignore[arg-type]
        assert answer.response_id is not None
        return answer.response_id

    async def says(self, response_id: ResponseId, text: str, *, tail: str = "") -> None:
        """The engine says `text`, of which `tail` is not in whole tokens."""
        tokens = await SimulatedTokenizer().text(text)
        piece = event_writer.Text(text + tail)
        number = self.running[response_id]
        self.input(inputs_and_effects.Output(response_id, number, (piece,), pack_tokens(tokens), tail))

    async def calls(self, response_id: ResponseId, *arguments: str) -> list[str]:
        for each in arguments:
            self.write(response_id, event_writer.CallBegin("look"), event_writer.CallArguments(each))
        self.finish(response_id)
        return list(self.state.awaiting[response_id].missing)

    async def prompt(self, response_id: ResponseId) -> list[int]:
        return list((await self.ledger.plan(self.state.open[response_id])).prompt)

    async def rendered(self, leaf: ItemId | None) -> list[int]:
        """The reference: opening and every item of the branch, from their texts."""
        tokenizer, state = SimulatedTokenizer(), self.state
        assert state.info is not None
        tokens = list(await tokenizer.opening(state.info.instructions, state.info.tools))
        path = item_tree.branch(state, leaf)
        while path:
            maker = state.made_by.get(path[0].id)
            if maker is None:
                tokens += await tokenizer.message(self.ledger.messages.rendered(path.pop(0)))
                continue
            answer = []
            while path and state.made_by.get(path[0].id) == maker:
                answer.append(path.pop(0))
            text = "".join(each.text for each in answer if isinstance(each, Message))
            calls = tuple((c.call_id, c.name, c.arguments) for c in answer if isinstance(c, FunctionCall))
            if calls:
                tokens += await tokenizer.message(ChatMessage(role="assistant", text=text, calls=calls))
            else:
                tokens += [*tokenizer.answer_opening, *await tokenizer.text(text), *tokenizer.answer_closing]
        return tokens

    async def expected(self, response_id: ResponseId) -> list[int]:
        """The reference prompt of an open response."""
        open_ = self.state.open[response_id]
        said = "".join("".join(draft.text) for draft in open_.drafts)
        return [
            *await self.rendered(open_.body.parent_id),
            *self.tokenizer.answer_opening,
            *await SimulatedTokenizer().text(said),
        ]
