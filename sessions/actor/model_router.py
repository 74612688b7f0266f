"""Directs a session's turns to models: it collects the facts of the session, its pools and its KV, and has
`sessions.routing.decision` decide.

One per replica. Its decision is in the log as the response's receipt (`service.routing`). If the session must switch,
the reason is written to the log first (`session.updated`), then the session moves (`actors.handoff.model_switch`) and
the same command is sent again at the new replica, where it is not decided anew. Does not know how sessions move, nor
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import UNSET

from sessions.machine.inputs_and_effects import Command
from sessions.machine.machine import Machine
from sessions.machine.model_routing import alias_of
from sessions.machine.routed_turns import ROUTING, RoutedTurns
from sessions.machine.state import State
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import Conflict, NotFound, SessileError, Unavailable
from sessions.model.request import Request
from sessions.model.types import Json, Message, Sampling, UnixMs
from sessions.ports import Engine
from sessions.routing.decision import RoutingDecision, TurnSituation, decide
from sessions.routing.models_file import ModelChoice, PoolsNow
from sessions.routing.scorer import score_turn
from sessions.routing.turn_facts import (
    CHARACTERS_A_TOKEN,
    TEMPLATE_TOKENS,
    PoolState,
    TurnFacts,
    candidate_of,
    facts_of,
)

Receipt = dict[str, Json]

DIGITS: Final = 3

log = structlog.get_logger(__name__)


class ModelSwitchPlan(NamedTuple):
    """The plan to move a session to a replica of another model. `routing` is the reason, to be written to the log; None
    if the session only goes back to the model that its log names."""

    model: str
    routing: ev.SessionRouting | None
    home: str = ""  # the replica where it had that model before


class Directed(NamedTuple):
    """Routing's decision for a command: its session moves first, it is refused, or its response gets a receipt."""

    switch: ModelSwitchPlan | None = None
    refused: SessileError | None = None
    alias: str = ""  # alias of the session that the command makes
    adopts: str = ""  # name of the model that the session has from here on
    receipt: Receipt | None = None


class ModelRouter:
    """Chooses the models for the turns of one replica's sessions. `states` returns the pools by model, this replica's
    own among them; `count` counts switches, by reason."""

    def __init__(
        self,
        pools: PoolsNow,
        engine: Engine,
        states: Callable[[], Mapping[str, PoolState]],
        *,
        replica: str,
        now_ms: Callable[[], UnixMs],
        count: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._pools = pools
        self._engine = engine
        self._states = states
        self._replica = replica
        self._now_ms = now_ms
        self._count = count

    def direct(self, machine: Machine, request: Request, *, keep_model: str = "") -> Directed | None:
        """Decides which model a command is for; returns None if the session stays as it is and nothing is to be
        recorded. `keep_model`, if not empty, is why the session could not leave just now; then no switch is tried
        again."""
        state, command = machine.state, request.command
        pools, info = self._pools(), state.info
        named = command.model if isinstance(command, cm.ModelTurn) and info is not None else None
        if (not pools.file.models and named is None) or machine.continues_turn(command):
            return None
        try:
            if named is not None and info is not None:
                choice = pools.choice(request.key.tenant, named)
                if choice is None or not choice.alias or choice.alias != alias_of(info):
                    return self._change(state, info, request, named, choice, keep_model)
            if info is None:
                settings = cm.session_settings_of(command)
                name = settings.model if settings is not None else None
                choice = pools.choice(request.key.tenant, name)
            elif facts_of(command) is None:
                return None
            else:
                choice = pools.choice(request.key.tenant, alias_of(info) or info.model)
        except SessileError as refusal:
            return Directed(refused=refusal)
        if choice is None or not choice.alias:
            return self._of_named(info, keep_model) if info is not None else None
        facts = facts_of(command, info.tools if info is not None else ())
        if facts is None:
            return Directed(alias=choice.alias)
        return self._routed(state, request, choice, facts, keep_model)

    def _change(
        self,
        state: State,
        info: ev.SessionInfo,
        request: Request,
        asked: str,
        choice: ModelChoice | None,
        keep_model: str,
    ) -> Directed | None:
        """Returns the decision for a turn that names another model, or alias, than its session has. Raises NotFound,
        Conflict."""
        here, alias = self._engine.info.model, choice if choice is not None and choice.alias else None
        model = asked if alias is not None else self._model_of(asked)
        if model == here and not alias_of(info) and self._model_of(info.model) in (None, here):
            return None
        if state.busy:
            text = (
                "The model changes between answers only, and one is being written or waits here: wait for its end or"
                " stop it, then send this again; or leave `model` out."
            )
            raise Conflict("response_in_progress", text, param="model", retryable=True, retry_after_ms=250)
        directed = Directed(adopts=here)
        if alias is not None:
            nothing = TurnFacts("", len(info.tools), Sampling(), TEMPLATE_TOKENS)
            facts = facts_of(request.command, info.tools) or nothing
            directed = self._routed(state, request, alias, facts, keep_model)._replace(adopts=alias.alias)
        elif model is not None and model != here and not keep_model:
            leaving = ev.SessionRouting(alias="", target=model, source=here, why="asked", command=request.command.id)
            directed = Directed(switch=ModelSwitchPlan(model, leaving))
        if directed.switch is None and here not in (alias.models if alias is not None else (model,)):
            text = f"No replica serves the model {asked!r} at the moment."
            raise NotFound("model_not_found", text, param="model")
        return directed

    def _model_of(self, name: str) -> str | None:
        """Returns the model that a name means, which is its own name or an alias that its replicas announce; None if no
        such model exists."""
        own = self._engine.info
        if name == own.model or name in own.aliases:
            return own.model
        states = self._states()
        if name in states or name in self._pools().file.models:
            return name
        return next((model for model, state in states.items() if name in state.aliases), None)

    def _of_named(self, info: ev.SessionInfo, keep_model: str) -> Directed | None:
        """Returns the decision for a session whose model was named, not chosen by an alias, and is not the one served
        here: a switch or a refusal. Returns None if the session stays."""
        if alias_of(info) or info.model == self._engine.info.model:
            return None
        if info.model in self._states() and not keep_model and info.model in self._pools().file.models:
            return Directed(switch=ModelSwitchPlan(info.model, None))
        if info.model not in self._pools().file.models:
            return None  # a name of its own for what is served here
        text = f"No replica serves the model {info.model!r} at the moment."
        return Directed(refused=Unavailable("no_replica", text, retry_after_ms=1_000))

    def _routed(
        self, state: State, request: Request, choice: ModelChoice, facts: TurnFacts, keep_model: str
    ) -> Directed:
        pools, info = self._pools(), state.info
        routed, here = state.routed or RoutedTurns(), self._engine.info.model
        routing = info.routing if info is not None and info.routing is not UNSET and info.routing.alias else None
        score = score_turn(facts.text, tools=facts.tools, wish=pools.wish(request.key.tenant))
        place, now = self._engine.place(request.key), self._now_ms()
        kept_ms = pools.file.routing.kept_s * 1000
        homes = routing.homes if routing is not None else {}
        candidates = []
        for name in choice.models:
            home = homes.get(name)
            kept = home.tokens if home is not None and now - home.at <= kept_ms else 0
            if name == here:
                kept = place.tokens
            at_hand = name == here and place.tier == "device"
            candidates.append(candidate_of(name, pools, self._states(), facts, kept=kept, here=at_hand))
        before = tokens_before(state)
        situation = TurnSituation(
            current=here,
            score=score.value,
            prompt_tokens=before + facts.tokens,
            in_turn=state.busy,
            level=routed.level,
            calm=routed.calm,
            displaced=routed.displaced,
        )
        decided = decide(situation, candidates, pools.file.routing)
        if decided is None:
            decided = RoutingDecision(here, "no_replica", score.value, routed.level or score.value, routed.calm)
        arrived = routing if routing is not None and routed.switched and routing.alias == choice.alias else None
        # Who has come for this turn, or because its pool was lost, answers one here before it is sent on.
        if decided.model != here and info is not None and not keep_model and arrived is None:
            source = ev.ModelHome(self._replica, place.tokens or before, now)
            leaving = ev.SessionRouting(
                alias=choice.alias,
                target=decided.model,
                source=here,
                why=decided.why,
                tokens=decided.tokens,
                version=pools.version,
                command=request.command.id,
                homes={**homes, here: source},
            )
            home = homes.get(decided.model)
            return Directed(switch=ModelSwitchPlan(decided.model, leaving, home.replica if home is not None else ""))
        receipt: Receipt = {
            "alias": choice.alias,
            "model": here,
            "why": keep_model or ("no_replica" if decided.model != here and arrived is None else decided.why),
            "score": round(score.value, DIGITS),
            "features": list(score.why),
            "level": round(decided.level, DIGITS),
            "calm": decided.calm,
            "tokens": 0,
            "version": pools.version,
        }
        if arrived is not None:
            receipt |= {"from": arrived.source, "why": arrived.why, "tokens": arrived.tokens}
            self._count(arrived.why)
        about = {"session": request.key.session, "tenant": request.key.tenant}
        log.info("turn_routed", **about, **receipt)
        return Directed(alias=choice.alias if info is None else "", receipt=receipt)


def with_receipt(input: Command, directed: Directed | None) -> Command:
    """Returns the command with what routing has decided: the receipt, the names of model and alias, and the refusal."""
    if directed is None:
        return input
    service = input.service
    if directed.receipt is not None:
        service = {**(service or {}), ROUTING: directed.receipt}
    refused = input.refused or directed.refused
    return msgspec.structs.replace(
        input, service=service, alias=directed.alias, adopts=directed.adopts, refused=refused
    )


def tokens_before(state: State) -> int:
    """Estimates how many tokens the session's newest prompt and its answer had."""
    for answer in reversed(state.answers.values()):
        if answer.usage is not None:
            counts = (answer.usage.get("input_tokens"), answer.usage.get("output_tokens"))
            return sum(count for count in counts if isinstance(count, int))
    info = state.info
    texts = sum(len(item.text) for item in state.items.values() if isinstance(item, Message))
    return (texts + len((info.instructions if info is not None else None) or "")) // CHARACTERS_A_TOKEN
