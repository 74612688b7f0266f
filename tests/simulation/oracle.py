"""What an answer must say, worked out from the log alone.

The simulated model is a pure function of its prompt, so an answer that was written by three replicas, one after another
has the text of an undisturbed run: any token that was lost, doubled or remembered wrongly changes everything behind it.
`Speaker` is that model, with a habit: asked to look, where it was given a tool, it calls it.
"""

from __future__ import annotations

from array import array

import msgspec

from inference.simulated import SimulatedEngine, SimulatedOptions
from inference.simulated.engine import SimulatedStream
from inference.simulated.tokenizer import SimulatedTokenizer, _encode
from inference.simulated.vocabulary import (
    BEGIN,
    CALL,
    END,
    ROLE,
    TOKEN_BYTES,
    TOOLS,
    answer_length,
    decode,
    hash_token,
    hash_tokens,
    next_token,
)
from inference.tokens import Utf8Stream
from sessions.model.generation import EngineInfo
from sessions.model.types import FunctionCall, FunctionCallOutput, Item, Message, Tool, unpack_tokens
from tests.simulation.rules import Response, Rules

LOOK = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})
ASKED = "look at"  # in a message: the model calls its tool; "look at both": twice
ANSWER_TOKENS_MEAN = 20
OPTIONS = SimulatedOptions(answer_tokens_mean=ANSWER_TOKENS_MEAN, step_base_s=0.02, slots=6, context_window=2048)


def script(prompt: str, tools: bool) -> str | None:
    """What the model says to the last message, where that is not left to chance."""
    if not tools or ASKED not in prompt:
        return None
    call = '<tool_call>{"name": "look", "arguments": {"at": "the %s"}}</tool_call>'
    return "well " + call % "sea" + (call % "sky" if "both" in prompt else "")


def _last_message(prompt: list[int]) -> tuple[str, bool]:
    """The text of the last message before the answer, if a person wrote it; and whether there are tools."""
    end = len(prompt) - 1 - prompt[::-1].index(END)
    begin = max(index for index in range(end) if prompt[index] in _ROLES)
    text = decode(prompt[begin + 1 : end]) if prompt[begin] == ROLE["user"] else ""
    return text, TOOLS in prompt


_ROLES = frozenset(ROLE.values())


class Speaker(SimulatedEngine):
    def __init__(self, options: SimulatedOptions) -> None:
        super().__init__(options)
        self._scripts: dict[SimulatedStream, list[int] | None] = {}

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, tool_format="hermes")

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting and not self._running_tokens

    def draw(self, stream: SimulatedStream) -> int | None:
        left = self._scripts.get(stream, [])
        if stream not in self._scripts:
            tokens = stream.tokens.tolist()
            opening = len(tokens) - 1 - tokens[::-1].index(ROLE["assistant"])
            text = script(*_last_message(tokens[:opening]))
            said = decode(tokens[opening + 1 :])
            left = self._scripts[stream] = None if text is None else _encode(text[len(said) :])[::-1]
        if left is None:
            return super().draw(stream)
        return left.pop() if left else None

    def _retire(self, stream: SimulatedStream) -> None:
        self._scripts.pop(stream, None)
        super()._retire(stream)


_tokenizer = SimulatedTokenizer()


class Expected(msgspec.Struct, frozen=True):
    text: str
    calls: tuple[tuple[str, str], ...]
    reason: str  # stop, length
    tokens: int
    scripted: bool = False


def prompt_of(rules: Rules, response: Response) -> list[int]:
    """The prompt of an answer, as PROTOCOL and template say it."""
    assert rules.info is not None
    tokens = [BEGIN]
    if rules.info.instructions is not None:
        tokens += [ROLE["system"], *_encode(rules.info.instructions), END]
    for tool in rules.info.tools:
        tokens += [TOOLS, *_encode(msgspec.json.encode(tool).decode()), END]
    path = rules.path(response.parent)
    if response.cut is not None:
        path = path[next(index for index, item in enumerate(path) if item.id == response.cut) :]
    at = 0
    while at < len(path):
        maker = rules.made_by.get(path[at].id)
        if maker is None:
            tokens += message_tokens(rules, path[at])
            at += 1
            continue
        made = rules.responses[maker]
        tokens += [ROLE["assistant"], *answer_tokens(made), END]
        while at < len(path) and rules.made_by.get(path[at].id) == maker:
            at += 1
    return [*tokens, ROLE["assistant"]]


def message_tokens(rules: Rules, item: Item) -> list[int]:
    if isinstance(item, FunctionCallOutput):
        above = rules.path(item.parent_id)
        call = next(i for i in above if isinstance(i, FunctionCall) and i.call_id == item.call_id)
        return [ROLE["tool"], CALL, *_encode(f"{item.call_id} {call.name}\n"), *_encode(item.output), END]
    assert isinstance(item, Message)
    return [ROLE[item.role], *_encode(item.text), END]


def answer_tokens(made: Response) -> list[int]:
    """The ledger of an answer that has ended: what its engine said, then what was said beyond its last whole token."""
    assert made.terminal is not None
    tail = made.tail
    return [*unpack_tokens(made.tokens), *_encode(tail)]


def whole_branch(rules: Rules, response: Response) -> bool:
    """No answer on the branch was cut in its middle (people may go on from any item): ledgers stand as they are."""
    path = rules.path(response.parent)
    on_path = {item.id for item in path}
    makers = {rules.made_by[item.id] for item in path if item.id in rules.made_by}
    return all(part.item.id in on_path for maker in makers for part in rules.responses[maker].parts)


def expected(rules: Rules, response: Response) -> Expected:
    """What the undisturbed model says."""
    prompt = prompt_of(rules, response)
    wanted = response.sampling.max_output_tokens if response.sampling is not None else None
    room = OPTIONS.context_window - len(prompt)
    most = min(room, wanted) if wanted is not None else room
    text = script(*_last_message(prompt[:-1]))
    if text is not None:
        tokens = _encode(text)
        whole = decode(tokens[:most])
        calls = tuple(("look", f'{{"at": "the {where}"}}') for where in ("sea", "sky") if f"the {where}" in whole)
        return Expected(whole, calls, "stop" if len(tokens) < most else "length", min(len(tokens), most), True)
    packed = array("I", prompt)
    state = hash_tokens(packed)
    end = max(0, answer_length(state, ANSWER_TOKENS_MEAN))
    utf8, last, said = Utf8Stream(()), prompt[-1], []
    count = told = 0
    while count < most and count != end:
        last = next_token(state, 0, last, utf8.pending)
        state = hash_token(last, state)
        said.append(utf8.feed(TOKEN_BYTES[last]))
        count += 1
        told = count if said[-1] else told  # what ends inside a character is never told, and not billed
    return Expected("".join(said), (), "length" if count == most else "stop", told)
