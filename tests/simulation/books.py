"""The books: what the journal was asked to make durable, by whom, and whether it may stand there.

Kept outside the product, from what arrives at the stores: one writer per fence, fences that only grow, a log that obeys
its grammar (`tests.simulation.rules`) and says what the model says (`tests.simulation.oracle`), every command applied
once, one bill per response, and a hand-off in which the source is silent once it has sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.peer import frames as pf
from sessions.actor.journal_writer import MARK
from sessions.model.events import CompactionFailed, CompactionUndone, ContextCompacted, Record
from sessions.model.journal_types import Append, Head
from sessions.model.types import FunctionCall, Message, SessionKey
from sessions.ports import Owner
from tests.simulation.oracle import MARKS, Expected, expected, message_tokens, summary_text, summary_tokens
from tests.simulation.rules import TERMINALS, Broken, Response, Rules, need
from tests.simulation.world import World

# Faults after which no replica may take another for dead that is not.
SPARING = {"directory_flushed", "directory_away", "directory_loses", "kill_replica", "kill_gateway", "pause_gateway"}
SPARING |= {"cut_clients", "silence_clients"}
BAD = "cancelled", "session_deleted", "steered"


class Account:
    """One session."""

    def __init__(self) -> None:
        self.fence = 0
        self.owner = ""  # replica/activation of the present grant
        self.writer = ""
        self.epoch = ""
        self.grew_at = 0.0
        self.read_at = 0.0  # when a device that read it last left
        self.records: list[Record] = []
        self.shown: list[dict[str, Any]] = []  # the records' events as clients are to see them
        self.rules = Rules()
        self.applied: dict[tuple[str, str], Any] = {}  # (principal, command) -> its record
        self.applied_at: dict[tuple[str, str], int] = {}  # -> the top after it
        self.billed: dict[str, Any] = {}
        self.summaries_due: set[str] = set()  # asked for; dies with the activation that was asked
        self.grants: list[tuple[float, str, str]] = []  # (when, writer, owner)
        self.snapshots = 0
        self.sealed: Seal | None = None


class Seal:
    """A source has said that it writes nothing more. `broken`: it has written since, because the hand-off failed."""

    def __init__(self, source: str, target: str, owner: Owner, at: float) -> None:
        self.source, self.target, self.owner, self.at = source, target, owner, at
        self.broken = False


class Books:
    def __init__(self, world: World) -> None:
        self.accounts: dict[SessionKey, Account] = {}
        self.traps: dict[str, Callable[[], None]] = {}  # what happens right after a process's next append
        self.on_seal: Callable[[str, str], None] | None = None  # what happens with the next seal: (source, target)
        self.model_at: Callable[[str], str] = lambda replica: ""
        self.unread: Callable[[SessionKey], bool] = lambda key: False  # may it be an orphan?
        self.spared: Callable[[str, str, SessionKey, str], bool] = lambda taker, writer, key, owner: False
        self.silent: Callable[[str, SessionKey], bool] = lambda source, key: False  # has it sealed it, to this moment?
        self._world = world
        self._handoffs: dict[tuple[str, str, int], SessionKey] = {}

    def account(self, key: SessionKey) -> Account:
        found = self.accounts.get(key)
        if found is None:
            found = self.accounts[key] = Account()
        return found

    # -- the journal ------------------------------------------------------------------------------------------------

    def granted(self, writer: str, key: SessionKey, head: Head) -> None:
        account, world = self.account(key), self._world
        world.count("grants")
        world.trace("books", "grant", key.session, head.fence, head.owner)
        world.check(head.fence == account.fence + 1, f"{key}: fence {head.fence} after {account.fence}")
        world.check(head.top == len(account.records), f"{key}: a grant at {head.top} of {len(account.records)}")
        world.check(
            all(head.owner != owner for _, _, owner in account.grants), f"{key}: {head.owner} was granted it twice"
        )
        world.check(not account.epoch or head.epoch == account.epoch, f"{key}: another epoch for the same log")
        if account.writer and account.writer != writer:
            world.count("moves")
        seal = account.sealed
        if seal is None and account.writer != writer and world.faults <= SPARING:
            robbed = self.spared(writer, account.writer, key, account.owner)
            world.check(not robbed, f"{key}: {writer} takes it from {account.writer}, which lives and has it in memory")
        in_order = world.faultless or (seal is not None and not seal.broken)
        promised = account.summaries_due and not account.rules.deleted and in_order
        world.check(not promised, f"{key}: moves, and {account.summaries_due} came to nothing")
        account.summaries_due.clear()
        if seal is not None and seal.target == writer:
            world.count("handed_off_open" if account.rules.open else "handed_off_idle")
        account.fence, account.owner, account.writer, account.epoch = head.fence, head.owner, writer, head.epoch
        account.grants.append((world.loop.now, writer, head.owner))
        account.sealed = None

    def appended(self, writer: str, append: Append) -> None:
        key, world = append.key, self._world
        account = self.account(key)
        world.check(append.fence == account.fence, f"{key}: written under fence {append.fence}, not {account.fence}")
        world.check(append.top == len(account.records), f"{key}: written at {append.top} of {len(account.records)}")
        world.check(writer == account.writer, f"{key}: {writer} writes under the fence of {account.writer}")
        sealed = account.sealed is not None and account.sealed.source == writer and world.faults <= SPARING
        world.check(not (sealed and self.silent(writer, key)), f"{key}: {writer} writes on after its seal")
        if account.sealed is not None and account.sealed.source == writer:
            account.sealed.broken = True
        try:
            account.grew_at = world.loop.now
            for record in append.records:
                account.rules.take(record)
                account.records.append(record)
                self._look_at(key, account, record)
            self._beside(account, append)
            model = account.rules.info.model if account.rules.info is not None else ""
            need(model in ("", self.model_at(writer)), f"{writer} has another model than {model}")
        except Broken as broken:
            world.violation(f"{key}: {broken} (offset {account.rules.top}, written by {writer})")
        if append.records and (trap := self.traps.pop(writer, None)) is not None:
            trap()
        if world.lines is not None:
            for record in append.records:
                world.trace("log", key.session, record.offset, brief(record))

    def _beside(self, account: Account, append: Append) -> None:
        """What stands beside the records of an append."""
        rules = account.rules
        for command in append.commands:
            name = command.principal_id, command.command_id
            if name == MARK:  # of an append, and no command
                continue
            again = account.applied.get(name)  # one without an effect on the log may be written twice, by its own actor
            same = (
                again is not None
                and not append.records
                and (again.answer, again.digest) == (command.answer, command.digest)
            )
            need(again is None or same, f"the command {command.command_id} is applied twice")
            account.applied[name] = command
            account.applied_at[name] = rules.top
            undone = any(isinstance(record.event, CompactionUndone) for record in append.records)
            if command.answer.compaction_id is not None and again is None and not undone:
                account.summaries_due.add(command.answer.compaction_id)
        ended = [event.response_id for record in append.records if isinstance(event := record.event, TERMINALS)]
        for row in append.usage:
            need(row.response_id not in account.billed, f"{row.response_id} is billed twice")
            need(row.response_id in ended, f"{row.response_id} is billed without an end")
            account.billed[row.response_id] = row
        for response_id in ended:
            response = rules.responses[response_id]
            if response.terminal is not None and response.created_at:
                need(response_id in account.billed, f"{response_id} ended without a bill")
        if append.head is not None:
            need(append.head.open == rules.busy, f"the head says open: {append.head.open}")
            need((append.head.deleted_at is not None) == rules.deleted, "the head and the log differ about deletion")
            need(not rules.stale_title, "a title outlives the words that it is made of")
            need(rules.info is None or append.head.title == rules.info.title, "the head has another title")
        if append.snapshot is not None:
            account.snapshots += 1
            need(append.snapshot.offset == rules.top, "a snapshot of another place")

    def _look_at(self, key: SessionKey, account: Account, record: Record) -> None:
        """What rules cannot know: tokens and the model's words."""
        event, rules = record.event, account.rules
        if isinstance(event, ContextCompacted):
            self._world.count("compacted_" + event.cause)
            summary = rules.summaries[event.summary.id]
            right = summary_text(rules, summary)
            need(summary.text == right, f"{summary.id} says {summary.text!r} for {right!r}")
            need(summary.tokens == packed(summary_tokens(summary)), f"{summary.id} was tokenised as another")
            account.summaries_due.discard(summary.id)
        if isinstance(event, CompactionFailed):
            self._world.count("compaction_failed")
            need(event.compaction_id in account.summaries_due, f"{event.compaction_id} fails, which nobody waits for")
            account.summaries_due.discard(event.compaction_id)
        if hasattr(event, "item") and not hasattr(event, "response_id"):
            stored = rules.item_tokens.get(event.item.id)
            if stored:
                fresh = packed(message_tokens(rules, event.item, fresh=True))
                need(stored == fresh, f"{event.item.id} was tokenised as another")
            return
        for text in rules.lost:
            self._world.take_back(MARKS.findall(text))
        rules.lost.clear()
        response = rules.responses.get(getattr(event, "response_id", ""))
        if response is not None and isinstance(event, TERMINALS) and response.created_at:
            self._judge(key, rules, response)

    def _judge(self, key: SessionKey, rules: Rules, response: Response) -> None:
        """An answer has ended: did it say what it had to say?"""
        self._world.count("ended_" + response.status)
        if response.disturbed or response.sampling is None or response.sampling.stop:
            return
        assert response.terminal is not None
        right = expected(rules, response)
        parts = response.parts
        text = "".join(part.so_far for part in parts if isinstance(part.item, Message))
        calls = tuple((part.item.name, part.so_far) for part in parts if isinstance(part.item, FunctionCall))
        reason = (response.terminal.response.incomplete_details or {}).get("reason")
        whole = response.status == "completed" or reason == "max_output_tokens"
        tools = rules.info is not None and bool(rules.info.tools)
        if right.scripted:  # cut short, the beginning of a tag may be shown for what it is
            tag = "<tool_call>".startswith(text.removeprefix("well").strip())
            need(right.text.startswith(text) or tag, f"{response.id}: {text!r} for {right.text!r}")
        else:
            same = agrees(text, right.text, whole=whole, bare=tools)
            need(same, f"{response.id}: {text!r} for {right.text!r}")
        if response.status == "completed":
            need(right.reason == "stop", f"{response.id} ended too early")
            need(calls == right.calls, f"{response.id} called {calls}, not {right.calls}")
        elif reason == "max_output_tokens":
            need(right.reason == "length", f"{response.id} was cut short")
        else:
            orphaned = reason == "orphaned" and self.unread(key)
            need(reason in BAD or orphaned or response.status == "failed", f"{response.id} is incomplete: {reason}")
        self._bill(response, right, whole, tools)

    def _bill(self, response: Response, right: Expected, whole: bool, tools: bool) -> None:
        assert response.terminal is not None
        usage = response.terminal.response.usage or {}
        if whole and not tools:
            need(
                usage["output_tokens"] == right.tokens,
                f"{response.id}: {usage['output_tokens']} billed of {right.tokens}",
            )
        need(usage["output_tokens"] <= right.tokens or tools, f"{response.id} is billed too much")

    # -- the directory, and what replicas tell each other -----------------------------------------------------------

    def claimed(self, key: SessionKey, owner: Owner, before: Owner | None) -> None:
        """A claim was won against a living owner: while nothing is broken only a hand-off may do that."""
        world = self._world
        if before is None or before == owner or before.replica == owner.replica:
            return
        account = self.account(key)
        sealed = account.sealed is not None and account.sealed.owner == before
        if world.faultless:
            world.check(sealed, f"{key}: {owner.replica} takes it from {before.replica}, which lives and did not seal")

    def frames(self, source: str, target: str, frames: list[Any], arrived: bool) -> None:
        """What replicas say to each other: as it is sent, and as it arrives."""
        world = self._world
        for frame in frames:
            match frame:
                case pf.Reserve() if not arrived:
                    self._handoffs[source, target, frame.handoff] = frame.key
                case pf.Sealed() if not arrived:
                    key = self._handoffs[source, target, frame.handoff]
                    account = self.account(key)
                    world.trace(source, "sealed", key.session, frame.top)
                    if self.on_seal is not None:
                        on_seal, self.on_seal = self.on_seal, None
                        on_seal(source, target)
                    if account.owner == f"{frame.owner.replica}/{frame.owner.activation}":
                        top = len(account.records)
                        world.check(frame.top == top, f"{key}: {source} sealed at {frame.top}, the log ends at {top}")
                        account.sealed = Seal(source, target, frame.owner, world.loop.now)
                case pf.Abort():
                    held = self._handoffs.get((target, source, frame.handoff))
                    if held is not None and arrived:  # the source goes on
                        self.account(held).sealed = None

    def refused(self, writer: str, append: Append) -> None:
        """An append was refused: of a source that has handed over, that is one too many."""
        account = self.account(append.key)
        if self._world.faultless and account.writer != writer:
            self._world.violation(f"{append.key}: {writer} writes on after it was succeeded by {account.writer}")


def agrees(text: str, right: str, *, whole: bool, bare: bool) -> bool:
    """Whether a text is the right one, or its beginning; `bare`: white space around it does not count."""
    if bare:
        text, right = text.strip(), right.strip()
    return text == right if whole else right.startswith(text)


def packed(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def brief(record: Record) -> str:
    event = record.event
    words = [type(event).__name__]
    for name in ("response_id", "delta", "cause", "replica"):
        if (value := getattr(event, name, None)) is not None:
            words.append(repr(value))
    if (item := getattr(event, "item", None)) is not None:
        words.append(item.id)
    return " ".join(words)
