"""Admission: whether a turn that came now finds a place in the engine's queue and would meet its target, or is refused.

    forecast (engine) + target (limits file) ──> let in now · let in, waiting, with its place · refused, with a time

A turn that the queue has no place for is refused, with targets or without. With targets, a turn is let in as long as it
is expected to begin its answer within its priority's TTFT target and answers go on
within its TPOT target. One that is not is refused before anything of it is written (`overloaded`, `retry_after_ms`):
whoever waits in vain costs those who do not their targets, and goodput, the turns that meet theirs, is what counts.

A turn that finds the engine idle is let in however long its own prompt takes: it would be as late whenever it came. So
is one that finds room beside others and waits for nobody, but only one in the time that its prompt takes: on an engine
that is never idle it would be refused for ever.

Brownout, where the limits file says so: when too many turns of a stretch were refused, answers do without something a
step at a time (fewer tokens, no log probabilities, nothing warmed ahead), so that more find a place; when hardly
any are, for several stretches, they get it back. What applies to a response stands in it (`service`).

At a step with `smaller_model` a turn that the model would be too late for, or might be, is judged by the smaller one's
forecast, and written by that: it takes what would be refused and little else. If it took all turns, the model would
stand idle and its forecast would say that all is well: the level would flap. So what goes up a level is what nobody
could take, and what comes down again is judged by the model alone: hardly any turn would have missed its target with
it. But both run on one device, and what the smaller one computes makes the model late: that alone can hold a level up
when the load has long gone (Bronson et al., "Metastable Failures in Distributed Systems", HotOS 2021). So when nobody
was refused for a minute, the level before is tried; a trial that fails doubles the time until the next.
(Switching models under load: Zhang et al., "Model-Switching", HotCloud 2020.)

Invariants: a repeat is never judged (its answer is known); a refusal says when to come back and touches no log; a level
changes by one step a stretch.
Does not know engines, clocks, tenants' names.
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
        """Counts one turn, refused or not. `missed`: the model would have been too late, whichever model took the
        turn."""
        self.advance(now, levels)
        self._turns += 1
        self._refused += refused
        self._missed += refused or missed

    def advance(self, now: float, levels: int) -> None:
        """Judges the stretches of STRETCH_S seconds that have passed by `now`; each moves the level by one at most."""
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
        """Returns the command as it may be applied: with its `service`, its answer shortened or given to the smaller
        model where brownout says so. Raises Overloaded with `retry_after_ms`."""
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
        """Warns, once for each limits file, of a brownout step that needs a smaller model where this replica has
        none."""
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
        """Whether work that nobody waits for (such as warming KV ahead of a turn) is done at the moment."""
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
    """Returns what a turn would miss: a place in the "queue", the target "ttft" or "tpot", or "" for none. `sure`: with
    a margin for the pace too, which is a mean; for turns that another model can take."""
    if forecast.full:
        return "queue"
    if forecast.ttft_s > MARGIN * target.ttft_ms / 1000:
        return "ttft"
    return "tpot" if forecast.tpot_s > (MARGIN if sure else 1.0) * target.tpot_ms / 1000 else ""


def _late_s(forecast: Forecast, target: Target) -> float:
    """Returns the seconds after which a refused turn should be sent again."""
    return max(forecast.ttft_s - MARGIN * target.ttft_ms / 1000, forecast.wait_s)


def admitted(admission: Admission | None, key: SessionKey, input: Command, *, expected: bool = True) -> Command:
    """Returns the command as it may be applied, or with its error in `refused`. `expected`: whether an engine surely
    writes its answer."""
    if admission is None or input.refused is not None or not _begins(input.command):
        return input
    whole = (input.prepared, *input.prepared_items)
    try:
        new_tokens = sum(len(prepared.tokens) // 4 for prepared in whole if prepared is not None)
        return admission.admit(key, input, new_tokens, expected=expected)
    except Overloaded as error:
        return msgspec.structs.replace(input, refused=error)


def _begins(command: cm.ActorCommand) -> bool:
    """Returns whether a command begins an answer of its own. What goes on with an admitted turn is not judged
    (`Machine.continues_turn`)."""
    match command:
        case cm.TurnCreate():
            return command.respond and generates(command.request)
        case cm.MessageCreate() | cm.MessageEdit():
            return command.respond
        case cm.ResponseCreate():
            return True
    return False
