"""Bugs on purpose: each a small change of the product, made by its test and nowhere else.

A simulator that finds nothing proves nothing. Each of these must be found within the stated number of seeds, from seed
0 on: about four times as many as it took when it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import actors.cluster.pool_states
import actors.directory.rules
import actors.handoff.source
import actors.hosting.ownership
import actors.hosting.recovery_gate
import actors.hosting.runtime
import actors.maintenance.sweeps
import actors.routing.subscriptions
import persistence.sql.journal
import persistence.sqlite.journal
import sessions.actor.snapshots
import sessions.machine.compaction
import sessions.machine.machine
import sessions.machine.responses
import sessions.machine.session_commands
import sessions.machine.state
import sessions.machine.turn_commands
import sessions.turn.ledger
import sessions.turn.output_accumulator
import sessions.turn.prompt_rendering
import transport.protocol.retraction
import transport.reading.feeds
import transport.reading.log_reader
import transport.reading.reader_set
from actors.routing.router import Router
from persistence.codec import Codec, KeyNotLoaded
from sessions.actor.actor import Actor, Phase
from sessions.machine.inputs_and_effects import Activated, TitleWritten
from sessions.model.errors import BadInput
from sessions.model.events import SessionUpdated
from sessions.model.journal_types import Append, Head
from sessions.model.request import request_of
from sessions.model.types import SessionKey
from sessions.ports import Published

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, tuple[int, tuple[str, ...], str, Plant]] = {}


def planted(seeds: int, *bent_on: str, store: str = "memory") -> Callable[[Plant], Plant]:
    """Found within so many seeds, where the nemesis is bent on these; without any, in seeds as they are. `store`: the
    kind of the database."""

    def note(plant: Plant) -> Plant:
        PLANTED[plant.__name__] = seeds, bent_on, store, plant
        return plant

    return note


# -- fences and leases ---------------------------------------------------------------------------------------------


@planted(40, "isolate")
def the_fence_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    right = persistence.sqlite.journal.SqliteCalls.append

    async def append(self: Any, append: Append) -> None:
        head = await self.head(append.key)
        await right(self, msgspec.structs.replace(append, fence=head.fence) if head is not None else append)

    patch.setattr(persistence.sqlite.journal.SqliteCalls, "append", append)


@planted(20)
def a_fence_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    right = persistence.sqlite.journal.SqliteCalls.grant

    async def grant(self: Any, key: SessionKey, *, expected_fence: int | None, **more: Any) -> Head:
        head = await right(self, key, expected_fence=expected_fence, **more)
        if expected_fence is not None:
            self._database.query("UPDATE heads SET fence = fence - 1 WHERE tenant = ?1 AND session = ?2", *key)
            head = msgspec.structs.replace(head, fence=head.fence - 1)
        return head

    patch.setattr(persistence.sqlite.journal.SqliteCalls, "grant", grant)


@planted(20)
def an_epoch_is_made_anew_with_each_owner(patch: pytest.MonkeyPatch) -> None:
    right = persistence.sqlite.journal.SqliteCalls.grant

    async def grant(self: Any, key: SessionKey, *, new_epoch: Any, **more: Any) -> Head:
        head = await right(self, key, new_epoch=new_epoch, **more)
        epoch = "UPDATE heads SET epoch = ?3 WHERE tenant = ?1 AND session = ?2"
        self._database.query(epoch, *key, new_epoch)
        return msgspec.structs.replace(head, epoch=new_epoch)

    patch.setattr(persistence.sqlite.journal.SqliteCalls, "grant", grant)


@planted(400, "pause_replica")
def a_sleeper_trusts_its_lease_when_it_wakes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actors.hosting.ownership.Ownership, "is_confirmed", lambda self, key: True)
    patch.setattr(actors.hosting.ownership.Ownership, "tick", lambda self: False)


@planted(40)
def a_claim_is_won_against_a_living_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actors.directory.rules.DirectoryState, "_counts", lambda self, entry, now: False)


# -- what is durable, and what is shown ----------------------------------------------------------------------------


@planted(5)
def shown_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    right = Actor._commit

    async def commit(self: Any, step: Any, letter: Any = None) -> None:
        if step.records:
            self._context.publish(Published(self.key, self.epoch, tuple(step.records)))
        await right(self, step, letter)

    patch.setattr(Actor, "_commit", commit)


@planted(5)
def a_reader_resumes_one_offset_late(patch: pytest.MonkeyPatch) -> None:
    right = transport.reading.log_reader.LogReader.standing

    async def standing(self: Any, *more: Any) -> Any:
        found = await right(self, *more)
        late = found.mode == "replay" and 0 < found.position < found.top
        return found._replace(position=found.position + 1, page=None) if late else found

    patch.setattr(transport.reading.log_reader.LogReader, "standing", standing)


@planted(40)
def a_gap_in_what_is_told_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    right = transport.reading.feeds.Feed.take_in

    def take_in(self: Any, published: Published) -> None:
        if self._entries:
            self.top = self._base + len(self._entries) - 1
            first = published.records[0].offset
            if first > self.top + 1:
                self._base = first - len(self._entries)
        right(self, published)

    patch.setattr(transport.reading.feeds.Feed, "take_in", take_in)


@planted(120, "partition")
def a_reader_that_fell_behind_is_not_told_how_far(patch: pytest.MonkeyPatch) -> None:
    async def catch_up(self: Any, watch: Any) -> None:
        watch.known = None

    patch.setattr(actors.routing.subscriptions.Subscriptions, "_catch_up", catch_up)


@planted(20)
def an_answer_overtakes_its_events(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        transport.reading.reader_set.ReaderSet, "answer", lambda self, message, session, offset: self.write(message)
    )


# -- commands ------------------------------------------------------------------------------------------------------


@planted(20)
def a_repeated_command_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions.machine.machine.Machine, "known", lambda self, principal, command_id: None)


@planted(40, "kill_after_persist")
def a_new_owner_does_not_know_old_commands(patch: pytest.MonkeyPatch) -> None:
    right = sessions.machine.machine.Machine.__init__

    def init(self: Any, state: Any, commands: Any = (), **more: Any) -> None:
        right(self, state, (), **more)

    patch.setattr(sessions.machine.machine.Machine, "__init__", init)


@planted(40, "hand_off")
def commands_that_wait_for_a_hand_off_are_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Actor, "_settle", lambda self: self._sealed_off.clear())


# -- hand-off and recovery -----------------------------------------------------------------------------------------


@planted(40, "hand_off")
def the_target_starts_before_the_source_is_silent(patch: pytest.MonkeyPatch) -> None:
    async def seal(self: Any) -> None:
        if self.phase is Phase.WARM:
            self.phase = Phase.SEALED

    patch.setattr(Actor, "seal", seal)


@planted(270, "directory_away", "drain")
def who_joins_knows_nobody_who_was_lost_sight_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actors.directory.rules.DirectoryState, "_vanished", lambda self, now: ())


@planted(40)
def queued_turns_are_forgotten_on_recovery(patch: pytest.MonkeyPatch) -> None:
    right = sessions.machine.state.replay

    def replay(loaded: Any) -> Any:
        state = right(loaded)
        state.queue.clear()
        return state

    patch.setattr(actors.hosting.ownership, "replay", replay)


@planted(40)
def a_continuation_forgets_its_last_token(patch: pytest.MonkeyPatch) -> None:
    right = sessions.turn.ledger.Ledger.plan

    async def plan(self: Any, open_: Any) -> Any:
        made = await right(self, open_)
        if not made.emitted:
            return made
        return msgspec.structs.replace(made, prompt=made.prompt[:-1], emitted=made.emitted[:-1])

    patch.setattr(sessions.turn.ledger.Ledger, "plan", plan)


@planted(40)
def the_end_of_a_sealed_answer_is_lost(patch: pytest.MonkeyPatch) -> None:
    take = sessions.turn.output_accumulator.OutputAccumulator.take

    def lose(self: Any) -> Any:
        output = take(self)
        task = next(iter(self._inbox._turns.tasks([self.response_id])), None)
        if output is not None and (task is None or task.done()):
            return msgspec.structs.replace(output, pieces=(), tokens=output.tokens)
        return output

    patch.setattr(sessions.turn.output_accumulator.OutputAccumulator, "take", lose)


@planted(60, "kill_replica", "cut_clients")
def nobody_finishes_what_nobody_reads(patch: pytest.MonkeyPatch) -> None:
    async def recover(self: Any) -> int:
        return 0

    patch.setattr(actors.maintenance.sweeps.Sweeps, "recover", recover)


@planted(40, "hand_off")
def an_open_answer_is_not_continued(patch: pytest.MonkeyPatch) -> None:
    right = sessions.machine.responses.activate

    def activate(build: Any, input: Activated) -> None:
        if input.cause != "handoff":
            right(build, input)

    patch.setattr(sessions.machine.responses, "activate", activate)


@planted(300, "directory_flushed")
def what_the_directory_forgot_belongs_to_nobody(patch: pytest.MonkeyPatch) -> None:
    async def check(self: Any, key: SessionKey, head: Head | None, instead_of: Any) -> None:
        return None

    patch.setattr(actors.hosting.ownership.Ownership, "_check_previous_owner", check)


@planted(40, "kill_replica")
def recovery_slots_are_lost(patch: pytest.MonkeyPatch) -> None:
    def done(self: Any, key: SessionKey) -> None:
        timer = self._holding.pop(key, None)
        if timer is not None:
            timer.cancel()

    patch.setattr(actors.hosting.recovery_gate.RecoveryGate, "done", done)


@planted(40)
def a_command_whose_answer_was_lost_is_sent_under_another_name(patch: pytest.MonkeyPatch) -> None:
    right = Router.execute

    async def execute(self: Any, request: Any) -> Any:
        self.names = getattr(self, "names", 0) + 1
        command = request.command
        renamed = request_of(request.principal, msgspec.structs.replace(command, id=f"{command.id}-{self.names}"))
        return msgspec.structs.replace(await right(self, renamed), id=command.id)

    patch.setattr(Router, "execute", execute)


@planted(60, "hand_off", "kill_replica")
def a_snapshot_leaves_out_what_waits(patch: pytest.MonkeyPatch) -> None:
    right = sessions.machine.state.pack_state

    def pack_state(state: Any) -> bytes:
        return right(msgspec.structs.replace(state, awaiting={}, item_tokens={}))

    patch.setattr(sessions.actor.snapshots, "pack_state", pack_state)


# -- what is taken back, summaries and prompts ---------------------------------------------------------------------


@planted(40)
def prompts_share_an_array(patch: pytest.MonkeyPatch) -> None:
    right = sessions.turn.prompt_rendering.JoinedPrompts._join

    def join(self: Any, opening: Any, branch: Any, first: int, end: int | None) -> Any:
        name, (last, kept) = (opening.tobytes(), branch.packed(first, end)), getattr(self, "last", (None, None))
        self.last = name, kept if last == name else right(self, opening, branch, first, end)
        return self.last[1]

    patch.setattr(sessions.turn.prompt_rendering.JoinedPrompts, "_join", join)


@planted(300)
def titles_are_replayed_as_they_were(patch: pytest.MonkeyPatch) -> None:
    right = transport.protocol.retraction.Scrubber.__init__

    def init(self: Any, retractions: Any) -> None:
        right(self, retractions)
        self._taken_back_at = 0

    patch.setattr(transport.protocol.retraction.Scrubber, "__init__", init)


@planted(500)
def a_title_is_set_whatever_was_taken_back_meanwhile(patch: pytest.MonkeyPatch) -> None:
    def set_title(build: Any, input: TitleWritten) -> None:
        info = build.state.info
        if info.title is None and not build.state.deleted:
            build.put(SessionUpdated(info=msgspec.structs.replace(info, title=input.title, title_made=True)))

    patch.setattr(sessions.machine.session_commands, "set_title", set_title)
    patch.setattr(Actor, "_stop_extras", lambda self: None)


@planted(20)
def a_summary_that_was_asked_for_ends_in_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions.machine.compaction, "give_up", lambda build, input: None)


@planted(400, "cut_clients")
def a_summary_outlives_what_it_has_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions.machine.compaction, "void", lambda build, items: None)


@planted(100)
def what_was_erased_stays_in_prompts(patch: pytest.MonkeyPatch) -> None:
    right = sessions.machine.state._retract

    def retract(state: Any, event: Any) -> None:
        kept = {name: (answer.tokens, answer.tail, answer.fingerprint) for name, answer in state.answers.items()}
        right(state, event)
        for name, answer in state.answers.items():
            answer.tokens, answer.tail, answer.fingerprint = kept[name]

    patch.setattr(sessions.machine.state, "_retract", retract)


@planted(2000)
def a_tail_outlives_what_was_taken_back(patch: pytest.MonkeyPatch) -> None:
    right = transport.reading.feeds.Feed.remember

    def remember(self: Any, *more: Any) -> None:
        entries, self._entries = self._entries, None
        right(self, *more)
        self._entries = entries

    patch.setattr(transport.reading.feeds.Feed, "remember", remember)


@planted(500)
def a_turn_behind_what_never_began_has_an_empty_context(patch: pytest.MonkeyPatch) -> None:
    right = sessions.machine.turn_commands._last_of

    def last_of(state: Any, response_id: Any) -> Any:
        try:
            return right(state, response_id)
        except BadInput:
            return None

    patch.setattr(sessions.machine.turn_commands, "_last_of", last_of)


@planted(1000)
def a_model_that_is_away_does_not_exist(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actors.cluster.pool_states.PoolStates, "known", lambda self: set(self()))


# -- what cannot be read -------------------------------------------------------------------------------------------


@planted(20, store="sqlite-sealed")
def a_page_of_heads_fails_whole(patch: pytest.MonkeyPatch) -> None:
    async def read_heads(codec: Codec, decode: Callable[[Codec], list[Head]]) -> list[Head]:
        while True:
            try:
                return decode(codec)
            except KeyNotLoaded as needed:
                await codec.load(needed.tenant, needed.key_id)

    patch.setattr(persistence.sql.journal, "read_heads", read_heads)


@planted(20, store="sqlite-sealed")
def what_cannot_be_read_cannot_be_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(actors.hosting.runtime, "UNREADABLE", ())
