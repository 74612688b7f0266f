"""Builds one step of the session machine: its functions read the state here, and add what they decide.

A `StepBuilder` lives for one step. `put` adds the record and advances the state at once, so later decisions see it.
`ActiveRuns` and `MachineConfig` live as long as the machine.
"""

from __future__ import annotations

import msgspec

from sessions.billing.prices import PriceBook
from sessions.machine.inputs_and_effects import Prepared, Step
from sessions.machine.state import State, apply
from sessions.model import events as ev
from sessions.model.types import Item, ResponseId, Tool, UnixMs, Usage


class MachineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a replica gives each of its machines."""

    default_model: str
    fingerprint: str  # of the tokenizer whose ids `Output` carries
    smaller_model: str = ""  # the only other model that writes here besides the session's; "": none does
    prices: PriceBook | None = None
    takes_tools: bool = True  # whether the session's model calls functions


class ActiveRuns(msgspec.Struct):
    """The engine runs of one activation. They are numbered, and the log has nothing of them."""

    current: dict[ResponseId, int] = {}  # the number of the present run of each response that has one
    paused: set[ResponseId] = set()  # responses whose runs were stopped because nobody reads
    prompts: dict[ResponseId, Usage] = {}  # what the present run's prompt cost, as far as is known
    num_begun: int = 0
    num_lost: int = 0  # runs begun by the time the engine was last lost
    replica: str = ""  # where the session is active


class StepBuilder(msgspec.Struct):
    state: State
    out: Step
    now: UnixMs
    config: MachineConfig
    runs: ActiveRuns

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The functions that the session's model may call."""
        return self.state.info.tools if self.state.info is not None else ()

    def put(self, event: ev.AnyEvent, private: ev.Private | None = None) -> None:
        """Adds an event as the next record, and advances the state by it."""
        record = ev.Record(self.state.top + 1, self.now, event, private)
        apply(self.state, record)
        self.out.records.append(record)

    def put_item(self, item: Item, prepared: Prepared | None) -> None:
        """Adds a new item, with its token ids if `prepared` has them."""
        private = ev.Private(tokens=prepared.tokens, fingerprint=prepared.fingerprint) if prepared else None
        self.put(ev.ItemCreated(item=item), private)
