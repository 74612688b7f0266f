"""The facts on which routing depends: a command's text, needs and length; and the pools in a view. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sessions.model import commands as cm
from sessions.model.generation import has_format, unhonoured_fields
from sessions.model.types import InputImage, Sampling, Tool
from sessions.routing.decision import CandidateModel
from sessions.routing.models_file import ModelPools, PoolModel

CHARACTERS_A_TOKEN = 4
TEMPLATE_TOKENS = 16  # that a chat template adds to a message


class PoolState(NamedTuple):
    """The replicas of one model that take sessions, and what all of them can do. `aliases` are the model's other
    names."""

    replicas: int
    load: float  # the mean of the replicas
    window: int
    tools: bool
    sampling: frozenset[str] | None  # fields of Sampling that they honour; None: unknown
    aliases: frozenset[str] = frozenset()
    images: bool = False  # whether they see them


class TurnFacts(NamedTuple):
    text: str
    tools: int
    sampling: Sampling
    tokens: int  # about how many tokens the command adds
    images: bool = False  # whether it brings any


def facts_of(command: cm.ActorCommand, tools: Sequence[Tool] = ()) -> TurnFacts | None:
    """Returns what routing needs to know of a command; None if it begins no turn. `tools` are the session's own."""
    match command:
        case cm.MessageCreate() | cm.MessageEdit():
            if not command.respond:
                return None
            text = "".join(part.text for part in cm.content_parts(command.content))
            contents = [command.content]
            whole = len(text)
        case cm.TurnCreate():
            if not command.respond:
                return None
            created = command.create.tools if command.create is not None else ()
            tools = (*(command.tools or ()), *created) or tools
            messages = [each for each in command.items if isinstance(each, cm.NewMessage)]
            contents = [each.content for each in messages]
            texts = ["".join(part.text for part in cm.content_parts(content)) for content in contents]
            asking = [text for text, each in zip(texts, messages, strict=True) if each.role == "user"]
            text = asking[-1] if asking else ""
            outputs = sum(len(each.output) for each in command.items if isinstance(each, cm.NewOutput))
            whole = sum(map(len, texts)) + outputs
        case _:
            return None
    called = tools if not isinstance(command, Sampling) or command.tool_choice != "none" else ()
    sampling = cm.sampling_of(command) if isinstance(command, Sampling) else Sampling()
    images = any(isinstance(part, InputImage) for content in contents for part in cm.content_parts(content))
    return TurnFacts(text, len(called), sampling, whole // CHARACTERS_A_TOKEN + TEMPLATE_TOKENS, images)


def candidate_of(
    name: str,
    pools: ModelPools,
    states: Mapping[str, PoolState],
    facts: TurnFacts,
    *,
    kept: int = 0,
    here: bool = False,
) -> CandidateModel:
    """Returns a model as a candidate for a turn now. `kept` is for how many tokens its pool has KV; `here`: that KV is
    on the device."""
    model, state = pools.file.models[name], states.get(name)
    return CandidateModel(
        name=name,
        quality=model.quality,
        live=state is not None and state.replicas > 0,
        load=state.load if state is not None else 0.0,
        window=window_of(model, state),
        able=_able(model, state, facts),
        kept=kept,
        on_device=here,
        prefill_per_s=model.prefill_per_s,
        restore_per_s=model.restore_per_s,
    )


def window_of(model: PoolModel, state: PoolState | None) -> int:
    known = [window for window in (model.window, state.window if state is not None else None) if window is not None]
    return min(known, default=1 << 30)


def _able(model: PoolModel, state: PoolState | None, facts: TurnFacts) -> bool:
    """Returns whether a model can do what the turn needs, by the models file, or by its replicas if the file does not
    say."""
    tools = model.tools is not False and (state is None or state.tools)
    json = model.json is not False or not has_format(facts.sampling)
    images = state is None or state.images
    known = state.sampling if state is not None else None
    honoured = known is None or not unhonoured_fields(facts.sampling, known)
    return (tools or not facts.tools) and (images or not facts.images) and json and honoured
