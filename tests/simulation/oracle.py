"""What an answer must say, worked out from the log alone.

The simulated model is a pure function of its prompt, so an answer that was written by three replicas, one after another
has the text of an undisturbed run: any token that was lost, doubled or remembered wrongly changes everything behind it.
`Speaker` is that model, with habits: asked to look, where it was given a tool, it calls it; asked for a title, it
repeats the first mark that people have put into their words (`mark`); asked for a summary, several.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from itertools import accumulate, groupby

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
from sessions.actor.compactor import INSTRUCTION
from sessions.actor.title_writer import PROMPT as TITLE
from sessions.model.generation import EngineInfo
from sessions.model.types import FunctionCall, FunctionCallOutput, Item, Message, Tool, unpack_tokens
from tests.simulation.rules import Response, Rules, Summary

LOOK = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})
ASKED = "look at"  # in a message: the model calls its tool; "look at both": twice
MARKS = re.compile(r"~\d+~")  # each text of a person has one that no other has
ANSWER_TOKENS_MEAN = 20
OPTIONS = SimulatedOptions(answer_tokens_mean=ANSWER_TOKENS_MEAN, step_base_s=0.02, slots=6, context_window=2048)


def mark(number: int) -> str:
    return f"~{number}~"


def script(prompt: list[int]) -> str | None:
    """Returns what the model says to a prompt, up to its answer, where that is not left to chance."""
    if END not in prompt:
        return None
    end = len(prompt) - 1 - prompt[::-1].index(END)
    begin = max((index for index in range(end) if prompt[index] in _ROLES), default=0)
    asked = decode(prompt[begin + 1 : end]) if prompt[begin] == ROLE["user"] else ""
    if asked in (TITLE, INSTRUCTION):
        return " ".join(["about", *MARKS.findall(decode(prompt))[: 1 if asked == TITLE else 6]])
    if TOOLS not in prompt or ASKED not in asked:
        return None
    call = '<tool_call>{"name": "look", "arguments": {"at": "the %s"}}</tool_call>'
    return "well " + call % "sea" + (call % "sky" if "both" in asked else "")


_ROLES = frozenset(ROLE.values())


class Speaker(SimulatedEngine):
    def __init__(self, options: SimulatedOptions) -> None:
        super().__init__(options)
        self._scripts: dict[SimulatedStream, list[int] | None] = {}
        self.on_prompt: Callable[[Iterable[int]], None] = lambda prompt: None

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
            text = script(tokens[:opening])
            said = decode(tokens[opening + 1 :])
            left = self._scripts[stream] = None if text is None else _encode(text[len(said) :])[::-1]
        if left is None:
            return super().draw(stream)
        return left.pop() if left else None

    def _submit(self, stream: SimulatedStream) -> None:
        self.on_prompt(stream.tokens)
        super()._submit(stream)

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


def prompt_of(rules: Rules, leaf: str | None, cut: str | None) -> list[int]:
    """Returns the beginning of a prompt that goes on from `leaf`, as PROTOCOL and template say it."""
    return _prompt(rules, leaf, cut, rules.summary_on(leaf))


def _prompt(rules: Rules, leaf: str | None, cut: str | None, summary: Summary | None) -> list[int]:
    assert rules.info is not None
    tokens = [BEGIN]
    if rules.info.instructions is not None:
        tokens += [ROLE["system"], *_encode(rules.info.instructions), END]
    for tool in rules.info.tools:
        tokens += [TOOLS, *_encode(msgspec.json.encode(tool).decode()), END]
    pieces = pieces_of(rules, leaf)
    base, ends = 0, list(accumulate(len(items) for items, _ in pieces))
    if summary is not None and summary.count in ends:  # people may go on from the middle of an answer
        base = ends.index(summary.count) + 1
        tokens += unpack_tokens(summary.tokens)
    first = max(base, next((at for at, (items, _) in enumerate(pieces) if items[0].id == cut), 0))
    kept = [*(at for at in pinned_pieces(rules, pieces) if at < first), *range(first, len(pieces))]
    return [*tokens, *(token for at in kept for token in pieces[at][1])]


def summary_tokens(summary: Summary) -> list[int]:
    words = f"[Summary of our conversation so far, written by {summary.model}]\n{summary.text}"
    return [ROLE["user"], *_encode(words), END]


def summary_text(rules: Rules, summary: Summary) -> str | None:
    """Returns what the model says when it makes this summary, the newest: it has read what was in force before."""
    on = {item.id for item in rules.path(summary.read)}
    before = next((one for one in reversed(rules.in_force[:-1]) if one.read in on), None)
    asked = [ROLE["user"], *_encode(INSTRUCTION), END]
    return script([*_prompt(rules, summary.read, None, before), *asked])


Piece = tuple[list[Item], list[int]]  # a message or an answer, and its tokens


def pieces_of(rules: Rules, leaf: str | None) -> list[Piece]:
    pieces: list[Piece] = []
    for maker, group in groupby(rules.path(leaf), lambda item: rules.made_by.get(item.id)):
        items = list(group)
        if maker is None:
            pieces += (([item], message_tokens(rules, item)) for item in items)
        else:
            pieces.append((items, answer_tokens(rules.responses[maker], items)))
    return pieces


def pinned_pieces(rules: Rules, pieces: list[Piece]) -> list[int]:
    """Returns the items that stay in prompts whatever is left out, calls with their outputs: a quarter of a window."""
    where = {str(item.id): at for at, (items, _) in enumerate(pieces) for item in items}
    kept = {where[name] for name in rules.pinned if name in where}
    calls = {item.call_id: where[item.id] for items, _ in pieces for item in items if isinstance(item, FunctionCall)}
    outputs = [
        (calls[item.call_id], where[item.id])
        for items, _ in pieces
        for item in items
        if isinstance(item, FunctionCallOutput) and item.call_id in calls
    ]
    kept |= {call for call, output in outputs if output in kept}
    kept |= {output for call, output in outputs if call in kept}
    room, newest = OPTIONS.context_window // 4, list[int]()
    for at in sorted(kept, reverse=True):
        room -= len(pieces[at][1])
        if room < 0:
            break
        newest.insert(0, at)
    return newest


def message_tokens(rules: Rules, item: Item, *, fresh: bool = False) -> list[int]:
    """The tokens of a message by a person or a tool: as they were when it came (a tool's output names its call)."""
    if (stored := rules.item_tokens.get(item.id)) and not fresh:
        return unpack_tokens(stored).tolist()
    if isinstance(item, FunctionCallOutput):
        above = rules.path(item.parent_id)
        names = [i.name for i in above if isinstance(i, FunctionCall) and i.call_id == item.call_id]
        return [ROLE["tool"], CALL, *_encode(f"{item.call_id} {(names or [''])[0]}\n"), *_encode(item.output), END]
    assert isinstance(item, Message)
    return [ROLE[item.role], *_encode(item.text), END]


def answer_tokens(made: Response, items: list[Item]) -> list[int]:
    """The ledger of an answer that has ended: what its engine said, then what was said beyond its last whole token. Of
    one that was rewritten, or of which a branch has the beginning only: its texts."""
    assert made.terminal is not None
    if not made.scrubbed and [part.item.id for part in made.parts] == [item.id for item in items]:
        return [ROLE["assistant"], *unpack_tokens(made.tokens), *_encode(made.tail), END]
    tokens = [ROLE["assistant"], *_encode("".join(item.text for item in items if isinstance(item, Message)))]
    for item in items:
        if isinstance(item, FunctionCall):
            tokens += [CALL, *_encode(f"{item.call_id}\n{item.name}\n{item.arguments}")]
    return [*tokens, END]


def expected(rules: Rules, response: Response) -> Expected:
    """What the undisturbed model says."""
    prompt = [*prompt_of(rules, response.parent, response.cut), ROLE["assistant"]]
    wanted = response.sampling.max_output_tokens if response.sampling is not None else None
    room = OPTIONS.context_window - len(prompt)
    most = min(room, wanted) if wanted is not None else room
    text = script(prompt[:-1])
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
