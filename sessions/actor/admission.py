"""Admission: whether a turn that came now finds a place in the engine's queue and would meet its target, or is refused.

    forecast (engine) + target (limits file) ──> let in now · let in, waiting, with its place · refused, with a time

A turn that the queue has no place for is refused, with targets or without. With targets, a turn is let in as long as it
is expected to begin its answer within its priority's TTFT target and answers go on within its TPOT target. One that is
not is refused before anything of it is written (`overloaded`, `retry_after_ms`): a turn that waits in vain makes others
miss their targets, and goodput, the number of turns that meet theirs, is what counts.

A turn that finds the engine idle is let in however long its own prompt takes: it would be as late whenever it came. A
turn that finds room beside others and waits for nobody is let in, too, because on an engine that is never idle it would
be refused for ever; but only one such turn in the time that its prompt takes.

Brownout, where the limits file says so: when too many turns of a stretch were refused, answers do without something a
step at a time (fewer tokens, no log probabilities, nothing warmed ahead), so that more find a place; when hardly any
are refused, for several stretches, answers get it back. What applied to a response is shown in its `service`.

At a step with `smaller_model` a turn for which the model would, or might, be too late is judged by the smaller model's
forecast, and written by that one: it takes what would be refused and little else. If it took all turns, the model would
be idle and its forecast would say that all is well: the level would flap. So the level goes up by the turns that
neither model could take, and comes down when hardly any turn would have missed its target with the model alone. But
both run on one device, and what the smaller one computes makes the model late: that alone can keep the level up when
the load has long gone (Bronson et al., "Metastable Failures in Distributed Systems", HotOS 2021). So when no turn was
refused for a minute, the next lower level is tried; a trial that fails doubles the time until the next. (Switching
models under load: Zhang et al., "Model-Switching", HotCloud 2020.)

Invariants: a repeat is never judged (its answer is known); a refusal says when to come back and touches no log; a level
changes by one step a stretch. Does not know engines, clocks, tenants' names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from sessions.limits import BrownoutStep, Forecast, Limits, LimitsNow, Target
from sessions.machine.inputs_and_effects import Command
from sessions.machine.responses import response_id_of
from sessions.model import commands as cm
from sessions.model.errors import Overloaded
from sessions.model.generation import generates
from sessions.model.types import Json, SessionKey
from sessions.ports import Engine

log = structlog.get_logger(__name__)

MARGIN: Final = 0.8  # share of a target at which a turn counts as late, for forecasts err
RETRY_MIN_MS: Final = 250
RETRY_MAX_MS: Final = 30_000
FULL_RETRY_MS: Final = 1_000
STRETCH_S: Final = 5.0
TOO_MANY: Final = 0.10  # share of a stretch's turns that were refused: one step down
HARDLY_ANY: Final = 0.02  # share of turns too late for the model, for `CALM` stretches: one step up
CALM: Final = 4
PATIENCE: Final = 12  # stretches in which hardly any were refused, though the model was late: one step up on trial
PATIENCE_MAX: Final = 192  # after trials that failed
TRIAL: Final = 3  # stretches that a trial lasts, the first of which is not judged


class Brownout:
    """The brownout level of one replica: at level 0 answers get everything, at level n they lose what
    `Limits.browned(n)` says."""

    def __init__(self) -> None:
        self.level = 0
        self._turns = 0
        self._refused = 0
        self._missed = 0
        self._calm = 0
        self._quiet = 0
        self._patience = PATIENCE
        self._trial = 0  # stretches of one that are left
        self._until: float | None = None

    def seen(self, now: float, levels: int, *, refused: bool, missed: bool = False) -> None:
        """Counts one turn that came at the time `now`, and whether it was refused. `missed`: the replica's own model
        would have been too late for it, whichever model took it. `levels` is how many levels the limits file has."""
        self.advance(now, levels)
        self._turns += 1
        self._refused += refused
        self._missed += refused or missed

    def advance(self, now: float, levels: int) -> None:
        """Judges the stretches of STRETCH_S seconds that have passed by `now`; each moves the level by at most one."""
        if self._until is None:
            self._until = now + STRETCH_S
        if now >= self._until:
            self._judge(levels)
            for _ in range(min(CALM * levels, int((now - self._until) / STRETCH_S))):
                self._judge(levels)  # stretches without turns
            self._until = now + STRETCH_S

    def _judge(self, levels: int) -> None:
        turns = max(1, self._turns)
        refused, missed = self._refused / turns, self._missed / turns
        self._turns = self._refused = self._missed = 0
        trial, self._trial = self._trial, max(0, self._trial - 1)
        if trial == TRIAL:
            return  # what the smaller model still writes slows the model
        if refused > TOO_MANY:
            if trial:
                self._trial, self._patience = 0, min(2 * self._patience, PATIENCE_MAX)
            self._calm = self._quiet = 0
            self.level += 1
        else:
            if trial == 1:
                self._patience = PATIENCE  # it went well
            good = refused <= HARDLY_ANY
            self._quiet = self._quiet + 1 if good else 0
            self._calm = self._calm + 1 if good and missed <= HARDLY_ANY else 0
            if self._calm >= CALM or self._quiet >= self._patience:
                if self._calm < CALM:
                    self._trial = TRIAL
                self._calm = self._quiet = 0
                self.level -= 1
        self.level = max(0, min(self.level, levels))


class Admission:
    """Admits or refuses the turns of one replica, whose engine has started. `refused` counts refusals, by reason;
    `replaced` counts turns that the smaller model takes, by reason."""

    def __init__(
        self,
        engine: Engine,
        limits: LimitsNow,
        clock: Callable[[], float],
        refused: Callable[[str], None] = lambda why: None,
        replaced: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._clock = clock
        self._refused = refused
        self._replaced = replaced
        self._looked_at: Limits | None = None
        self._long_until = 0.0  # a prompt that was late by itself is being computed
        self.brownout = Brownout()
        self._look(limits())

    def admit(self, key: SessionKey, input: Command, new_tokens: int, *, expected: bool = True) -> Command:
        """Returns the command as it may be applied: with its `service`, and its answer shortened or given to the
        smaller model if brownout requires it. `new_tokens` is the length of what it adds to the prompt. Raises
        Overloaded with `retry_after_ms`."""
        limits = self._limits()
        self._look(limits)
        share = limits.share(input.principal)
        target = limits.target(share.priority)
        forecast = self._engine.forecast(key, share, new_tokens)
        if forecast is None:
            return input
        if target is None:
            if forecast.full:
                self._refused("queue")
                raise Overloaded("overloaded", "The model is busy. Try again shortly.", retry_after_ms=FULL_RETRY_MS)
            if expected:
                self._engine.expect(key.tenant, response_id_of(key, input.principal, input.command.id))
            return input
        now, levels = self._clock(), len(limits.brownout)
        self.brownout.advance(now, levels)
        why, model, late_s = _missed(forecast, target), "", _late_s(forecast, target)
        if forecast.idle:
            why = ""  # late by its own prompt alone: coming later would change nothing
        unsure = why or ("" if forecast.idle else _missed(forecast, target, sure=True))
        name = self._engine.info.smaller_model if limits.browned(self.brownout.level)[1].smaller_model else ""
        if unsure and name:
            smaller = self._engine.forecast(key, share, new_tokens, name)
            if smaller is None or not _missed(smaller, target, sure=True):
                model, forecast = name, smaller or forecast
            else:
                late_s = min(late_s, _late_s(smaller, target))
        refused = bool(why) and not model
        if refused and why == "ttft" and not forecast.position and not forecast.wait_s and now >= self._long_until:
            refused, self._long_until = False, now + forecast.ttft_s
        self.brownout.seen(now, levels, refused=refused, missed=bool(why))
        if refused:
            self._refused(why)
            raise Overloaded(
                "overloaded",
                "Answers would come too late at the moment. Try again after `retry_after_ms`.",
                retry_after_ms=min(RETRY_MAX_MS, max(RETRY_MIN_MS, round(late_s * 1000))),
            )
        if model:
            self._replaced(unsure)
        if expected:
            self._engine.expect(key.tenant, response_id_of(key, input.principal, input.command.id), model)
        judged = self._with_service(input, forecast.position, forecast.wait_s, limits)
        return msgspec.structs.replace(judged, model=model)

    def _look(self, limits: Limits) -> None:
        """Warns, once for each limits file, of brownout steps that use a smaller model if this replica has none."""
        if limits is self._looked_at:
            return
        self._looked_at = limits
        steps = [step for step in limits.brownout if isinstance(step, BrownoutStep)]
        if any(step.smaller_model for step in steps) and not self._engine.info.smaller_model:
            log.warning(
                "smaller_model_omitted", about="brownout needs one: name it with --brownout-model; goes without"
            )

    @property
    def gives_extras(self) -> bool:
        """Whether the present brownout level allows work that nobody waits for, such as warming KV ahead of a turn."""
        return self._limits().browned(self.level)[1].extras

    @property
    def level(self) -> int:
        """The brownout level now; it falls even while no turns come."""
        self.brownout.advance(self._clock(), len(self._limits().brownout))
        return self.brownout.level

    def _with_service(self, input: Command, position: int, wait_s: float, limits: Limits) -> Command:
        service: dict[str, Json] = dict(input.service or {})
        command = input.command
        if position:
            service |= {"queue_position": position, "expected_wait_ms": round(wait_s * 1000)}
        level, step = limits.browned(self.brownout.level)
        if level and isinstance(command, cm.MessageCreate | cm.MessageEdit | cm.ResponseCreate | cm.TurnCreate):
            service["brownout"] = level
            answer_max, cut = command.max_output_tokens, step.output_tokens
            if cut is not None:
                service["max_output_tokens"] = cut
                if answer_max is None or answer_max > cut:
                    command = msgspec.structs.replace(command, max_output_tokens=cut)
            if not step.extras and command.logprobs:
                service["without"] = ["logprobs"]
                command = msgspec.structs.replace(command, logprobs=False, top_logprobs=None)
        return msgspec.structs.replace(input, command=command, service=service or None)


def _missed(forecast: Forecast, target: Target, *, sure: bool = False) -> str:
    """Returns what a turn would miss: a place in the queue ("queue"), the target for the first token ("ttft") or that
    for later tokens ("tpot"); "" for nothing. With `sure` the forecast for later tokens, which is only a mean, must
    keep a margin, too; that is for turns that another model can take."""
    if forecast.full:
        return "queue"
    if forecast.ttft_s > MARGIN * target.ttft_ms / 1000:
        return "ttft"
    return "tpot" if forecast.tpot_s > (MARGIN if sure else 1.0) * target.tpot_ms / 1000 else ""


def _late_s(forecast: Forecast, target: Target) -> float:
    """Returns the seconds after which a refused turn should be sent again."""
    return max(forecast.ttft_s - MARGIN * target.ttft_ms / 1000, forecast.wait_s)


def admitted(admission: Admission | None, key: SessionKey, input: Command, *, expected: bool = True) -> Command:
    """Returns the command as `admission` lets it in, or with its error in `refused`; unchanged if it begins no answer.
    `expected`: it is certain that an engine will write the answer."""
    if admission is None or input.refused is not None or not _begins(input.command):
        return input
    whole = (input.prepared, *input.prepared_items)
    try:
        new_tokens = sum(len(prepared.tokens) // 4 for prepared in whole if prepared is not None)
        return admission.admit(key, input, new_tokens, expected=expected)
    except Overloaded as error:
        return msgspec.structs.replace(input, refused=error)


def _begins(command: cm.ActorCommand) -> bool:
    """Returns whether a command begins an answer that must be admitted. Commands that go on with an admitted turn are
    not judged (`Machine.continues_turn`)."""
    match command:
        case cm.TurnCreate():
            return command.respond and generates(command.request)
        case cm.MessageCreate() | cm.MessageEdit():
            return command.respond
        case cm.ResponseCreate():
            return True
    return False
