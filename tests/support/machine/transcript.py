"""Transcripts of the machine: lines of input, `----`, and what they lead to, as text that people read in a review.

    message c2 "Hello"              a client's command; c2 is its id
    ----
      2 item.created user c2.item parent=- completed "Hello"
      3 response.created c2.resp #0 in_progress parent=c2.item

Ids are written by where they come from: `c2.item` and `c2.resp` are what command c2 made, `c2.resp.0` is the first
output item of that response, `c2.resp.call.0` the call that it makes. After etcd/raft's testdata.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any, assert_never

import msgspec
from msgspec import UNSET

from sessions.machine import event_writer, inputs_and_effects
from sessions.machine.client_state import client_state
from sessions.model import commands as cm
from sessions.model import events as ev
from sessions.model.errors import SessileError, Unavailable
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    CallId,
    CommandId,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    ItemId,
    Message,
    OutputText,
    Refusal,
    ResponseId,
    Tool,
    Usage,
)
from tests.support.machine.machine_fixture import SESSION, Ground


class Names:
    """Ids both ways: as the machine makes them and as a transcript writes them."""

    def __init__(self) -> None:
        self._short: dict[str, str] = {}
        self._full: dict[str, str] = {}

    def add(self, full: str, short: str) -> None:
        if full not in self._short:
            self._short[full], self._full[short] = short, full

    def short(self, full: str | None) -> str:
        if full is None:
            return "-"
        if full in self._short:
            return self._short[full]
        stem, _, index = full.rpartition("_")
        for prefix, kind in (("msg_", "."), ("fc_", "."), ("call_", ".call.")):
            response = "resp_" + stem.removeprefix(prefix)
            if stem.startswith(prefix) and response in self._short:
                self.add(full, f"{self._short[response]}{kind}{index}")
                return self._short[full]
        return full

    def full(self, short: str) -> str:
        return self._full.get(short, short)


class Player:
    """Plays the input lines of one transcript and says what came of each."""

    def __init__(self) -> None:
        self.ground = Ground()
        self.names = Names()
        self._sent: dict[str, cm.ActorCommand] = {}

    def play(self, line: str) -> list[str]:
        verb, *words = shlex.split(line)
        options = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("{"))
        plain = [word for word in words if word.split("=", 1)[0] not in options]
        play: Callable[..., list[str]] = getattr(self, f"do_{verb}")
        said = play(*plain, **options)
        self.ground.check()
        self.ground.check_folding(len(self.ground.records) // 2)
        return said

    # -- what clients say ------------------------------------------------------------------------------------------

    def do_create(self, name: str, **more: Any) -> list[str]:
        tools = [Tool(name=more.pop("server_tool"), server=True)] if "server_tool" in more else []
        tools += [Tool(name=more.pop("tool"))] if "tool" in more else []
        if tools:
            more["tools"] = tuple(tools)
        return self._send(cm.SessionCreate(id=CommandId(name), session=SESSION, **more))

    def do_message(self, name: str, text: str, *flags: str, parent: str = "", **sampling: str) -> list[str]:
        chosen: dict[str, Any] = {key: json.loads(v) if v[0].isdigit() else v for key, v in sampling.items()}
        command = cm.MessageCreate(
            id=CommandId(name),
            session=SESSION,
            content=text,
            parent_id=self._parent(parent),
            queue="queue" in flags,
            respond="silent" not in flags,
            **chosen,
        )
        return self._send(command)

    def do_turn(self, name: str, *words: str, after: str = "", parent: str = "", **settings: Any) -> list[str]:
        """Sends a whole turn: items are `user:words`, `call:id:name:arguments`, `output:call:words`."""
        if "tool" in settings:
            settings["tools"] = (Tool(name=settings.pop("tool")),)
        create = None
        if "new" in words:
            create, settings = cm.SessionSettings(listed="unlisted" not in words, **settings), {}
        command = cm.TurnCreate(
            id=CommandId(name),
            session=SESSION,
            create=create,
            items=tuple(self._new_item(*word.split(":", 3)) for word in words if ":" in word),
            parent_id=self._parent(parent),
            after_response=ResponseId(self.names.full(after)) if after else None,
            respond="silent" not in words,
            **settings,
        )
        return self._send(command)

    def _new_item(self, kind: str, *words: str) -> cm.NewItem:
        match kind:
            case "call":
                return cm.NewCall(call_id=CallId(words[0]), name=words[1], arguments=words[2])
            case "output":
                return cm.NewOutput(call_id=CallId(self.names.full(words[0])), output=words[1])
            case _:
                return cm.NewMessage(role=kind, content=words[0])  # type: ignore[arg-type]

    def do_steer(self, name: str, response: str, text: str) -> list[str]:
        response_id = ResponseId(self.names.full(response))
        return self._send(cm.ResponseSteer(id=CommandId(name), session=SESSION, response_id=response_id, content=text))

    def do_erase(self, name: str, response: str) -> list[str]:
        response_id = ResponseId(self.names.full(response))
        return self._send(cm.ResponseErase(id=CommandId(name), session=SESSION, response_id=response_id))

    def do_edit(self, name: str, item: str, text: str, *flags: str) -> list[str]:
        item_id = ItemId(self.names.full(item))
        respond = "silent" not in flags
        return self._send(
            cm.MessageEdit(id=CommandId(name), session=SESSION, item_id=item_id, content=text, respond=respond)
        )

    def do_respond(self, name: str, *flags: str, parent: str = "") -> list[str]:
        return self._send(
            cm.ResponseCreate(
                id=CommandId(name), session=SESSION, parent_id=self._parent(parent), queue="queue" in flags
            )
        )

    def do_cancel(self, name: str, response: str) -> list[str]:
        return self._send(
            cm.ResponseCancel(id=CommandId(name), session=SESSION, response_id=ResponseId(self.names.full(response)))
        )

    def do_output(self, name: str, call: str, output: str, *flags: str) -> list[str]:
        return self._send(
            cm.ToolOutput(
                id=CommandId(name),
                session=SESSION,
                call_id=CallId(self.names.full(call)),
                output=output,
                is_error="error" in flags,
            )
        )

    def do_approve(self, name: str, call: str, *flags: str) -> list[str]:
        call_id = CallId(self.names.full(call))
        return self._send(
            cm.ToolApprove(id=CommandId(name), session=SESSION, call_id=call_id, approved="denied" not in flags)
        )

    def do_update(self, name: str, **changes: Any) -> list[str]:
        return self._send(cm.SessionUpdate(id=CommandId(name), session=SESSION, **changes))

    def do_delete(self, name: str) -> list[str]:
        return self._send(cm.SessionDelete(id=CommandId(name), session=SESSION))

    def do_again(self, name: str) -> list[str]:
        """The same command once more."""
        return self._send(self._sent[name])

    def _send(self, command: cm.ActorCommand) -> list[str]:
        self._sent.setdefault(command.id, command)
        prepared = None
        if isinstance(command, cm.MessageCreate | cm.MessageEdit | cm.ResponseSteer | cm.ToolOutput):
            prepared = inputs_and_effects.Prepared(b"\x01\0\0\0", self.ground.fingerprint)
        names = ("model", "service", "alias", "adopts")
        admitted: dict[str, Any] = {name: getattr(self.ground, name) for name in names}
        input = inputs_and_effects.Command(LOCAL_PRINCIPAL, command, cm.command_digest(command), prepared, **admitted)
        step = self.ground.input(input)
        if isinstance(step.answer, cm.Ok):
            if step.answer.item_id is not None:
                self.names.add(step.answer.item_id, f"{command.id}.item")
            if step.answer.response_id is not None:
                self.names.add(step.answer.response_id, f"{command.id}.resp")
        return self._told(step)

    def _parent(self, parent: str) -> Any:
        return UNSET if not parent else None if parent == "root" else self.names.full(parent)

    # -- what engines say ------------------------------------------------------------------------------------------

    def do_text(self, response: str, text: str, *, run: str = "", tail: str = "") -> list[str]:
        return self._output(response, event_writer.Text(text), run=run, tail=tail)

    def do_call(self, response: str, name: str, arguments: str) -> list[str]:
        return self._output(response, event_writer.CallBegin(name), event_writer.CallArguments(arguments))

    def _output(self, response: str, *pieces: event_writer.Piece, run: str = "", tail: str = "") -> list[str]:
        response_id = self.names.full(response)
        number = int(run) if run else self.ground.running[response_id]  # type: ignore[index]
        return self._told(
            self.ground.input(inputs_and_effects.Output(response_id, number, pieces, b"\x02\0\0\0", tail))  # type: ignore[arg-type]
        )

    def do_finish(self, response: str, reason: Any = "stop", refusal: str | None = None) -> list[str]:
        return self._told(self.ground.finish(self.names.full(response), reason, refusal=refusal))  # type: ignore[arg-type]

    def do_break(self, response: str, code: str) -> list[str]:
        response_id = self.names.full(response)
        number = self.ground.running.pop(response_id)  # type: ignore[call-overload]
        error = Unavailable(code, "The engine is gone.")
        failed = inputs_and_effects.GenerationFailed(response_id, number, error, Usage(3, 0))  # type: ignore[arg-type]
        return self._told(self.ground.input(failed))

    def do_fitted(self, response: str, *, dropped: str, cut: str) -> list[str]:
        response_id = self.names.full(response)
        number = self.ground.running[response_id]  # type: ignore[index]
        fitted = inputs_and_effects.Fitted(response_id, number, int(dropped), self.names.full(cut))  # type: ignore[arg-type]
        return self._told(self.ground.input(fitted))

    # -- what the server's tools say -------------------------------------------------------------------------------

    def do_starting(self, response: str, call: str) -> list[str]:
        return self._told(self.ground.input(inputs_and_effects.ToolStarting(*self._call(response, call), "x1")))

    def do_answered(self, response: str, call: str, output: str) -> list[str]:
        response_id, call_id = self._call(response, call)
        return self._told(
            self.ground.input(inputs_and_effects.ToolAnswered(response_id=response_id, call_id=call_id, output=output))
        )

    def do_needs_approval(self, response: str, call: str) -> list[str]:
        return self._told(self.ground.input(inputs_and_effects.ToolApprovalNeeded(*self._call(response, call))))

    def do_awaiting(self) -> list[str]:
        """Lists the turns that wait for outputs, as clients are shown them."""
        return [
            f"{self.names.short(turn['response_id'])} {key} {' '.join(map(self.names.short, turn[key]))}"
            for turn in client_state(self.ground.state)["awaiting"]
            for key in ("missing", "approval")
            if turn.get(key)
        ]

    def _call(self, response: str, call: str) -> tuple[ResponseId, CallId]:
        return ResponseId(self.names.full(response)), CallId(self.names.full(call))

    # -- what replicas are and do ----------------------------------------------------------------------------------

    def do_smaller_model(self, name: str) -> list[str]:
        """Gives the replica of the next activation another smaller model."""
        self.ground.smaller_model = name
        return self.do_crash() if self.ground.records else []

    def do_replica_of(self, model: str, **more: Any) -> list[str]:
        """Activates the session at a replica of a model."""
        self.ground.default_model = model
        return self.do_crash(**more)

    def do_named(self, *, alias: str = "", adopts: str = "") -> list[str]:
        """Says by which alias later commands make a session, and by which one they call its model."""
        self.ground.alias, self.ground.adopts = alias, adopts
        return []

    def do_chosen(self, target: str, *, alias: str = "", source: str = "sim", why: str = "asked") -> list[str]:
        """Reports that another model was chosen for the session."""
        routing = ev.SessionRouting(alias=alias, target=target, source=source, why=why, tokens=7, command="c")
        return self._told(self.ground.input(inputs_and_effects.ModelChosen(routing)))

    def do_routed(self) -> list[str]:
        """What is known of the session's turns since it was routed."""
        return [json.dumps(msgspec.to_builtins(self.ground.state.routed))]

    def do_admission(self, *, model: str = "", **service: str) -> list[str]:
        """Lets later commands in at a model, with what admission says of them."""
        self.ground.model, self.ground.service = model, {key: json.loads(v) for key, v in service.items()} or None
        return []

    # -- what happens ----------------------------------------------------------------------------------------------

    def do_deadline(self, response: str) -> list[str]:
        return self._told(self.ground.input(inputs_and_effects.ToolDeadline(self.names.full(response))))  # type: ignore[arg-type]

    def do_crash(self, *, snapshot: str = "0", cause: Any = "failover", tokenizer: str | None = None) -> list[str]:
        return self._told(self.ground.activate(snapshot_at=int(snapshot), cause=cause, fingerprint=tokenizer))

    def do_day_later(self) -> list[str]:
        """Begins another activation for which the journal has kept no commands: it keeps them for 24 hours."""
        self.ground.commands.clear()
        return self.do_crash()

    def do_orphaned(self) -> list[str]:
        return self._told(self.ground.input(inputs_and_effects.Orphaned()))

    def do_queue(self) -> list[str]:
        """Who waits for whom."""
        return [f"{self.names.short(w.body.id)} after {self.names.short(w.after)}" for w in self.ground.state.queue]

    # -- as text ---------------------------------------------------------------------------------------------------

    def _told(self, step: inputs_and_effects.Step) -> list[str]:
        return [
            *(f"{record.offset:3} {self.event(record)}" for record in step.records),
            *([f"head open={_yes(step.head.open)}{_head(step.head)}"] if step.head is not None else []),
            *(
                " ".join(
                    ["usage", self.names.short(row.response_id), row.status, _usage(row.usage), *_other(row.model)]
                )
                for row in step.usage
            ),
            *self._answered(step.answer),
            *(self.effect(effect) for effect in step.effects),
        ]

    def _answered(self, answer: cm.Ok | SessileError | None) -> Iterator[str]:
        if isinstance(answer, SessileError):
            yield f"error {answer.code}{' (retryable)' if answer.retryable else ''}"
        elif answer is not None:
            parts = [f"ok {answer.id}"]
            parts += [f"item={self.names.short(answer.item_id)}"] if answer.item_id else []
            parts += [f"response={self.names.short(answer.response_id)}"] if answer.response_id else []
            yield " ".join([*parts, f"offset={answer.offset}", *(["noop"] if answer.noop else [])])

    def effect(self, effect: inputs_and_effects.Effect) -> str:
        match effect:
            case inputs_and_effects.Start():
                behind = f" behind {self.names.short(effect.behind)}" if effect.behind else ""
                return f"=> start {self.names.short(effect.response_id)} run {effect.generation}{behind}"
            case inputs_and_effects.Stop():
                return f"=> stop {self.names.short(effect.response_id)}"
            case inputs_and_effects.ArmToolDeadline():
                return f"=> arm the tool deadline of {self.names.short(effect.response_id)}"
            case inputs_and_effects.RunTools():
                return f"=> carry out the calls of {self.names.short(effect.response_id)}"
            case inputs_and_effects.SendToolCall():
                return f"=> send a call of {self.names.short(effect.response_id)}"
            case inputs_and_effects.StopTools():
                return f"=> stop the calls of {self.names.short(effect.response_id)}"
            case inputs_and_effects.Erase():
                return "=> erase"
            case inputs_and_effects.Compact():
                return f"=> compact all but {effect.keep_turns} turns"
            case inputs_and_effects.ShortenedContext():
                return "=> prefill"
            case _:
                assert_never(effect)

    def event(self, record: ev.Record) -> str:
        event, private, short = record.event, record.private, self.names.short
        words = [str(event.__struct_config__.tag)]
        if isinstance(event, ev.ResponseEvent):
            words.append(f"{short(event.response_id)} #{event.sequence_number}")
        match event:
            case ev.SessionCreated() | ev.SessionUpdated():
                info = event.info
                words.append(f"model={info.model} title={_text(info.title)} instructions={_text(info.instructions)}")
                if isinstance(info.routing, ev.SessionRouting):
                    words.append(f"routing={json.dumps(msgspec.to_builtins(info.routing))}")
            case ev.SessionMigrated():
                words.append(f"{event.replica} {event.cause}")
            case ev.ItemCreated():
                words.append(self.item(event.item))
            case ev.ContextFitted():
                words.append(f"{short(event.response_id)} dropped={event.dropped}")
            case ev.ResponseQueued():
                words.append(self.item(event.item) if event.item is not None else "(no message)")
                words += _service(event.response)
            case ev.ResponseCreated():
                words.append(f"{event.response.status} parent={short(event.response.parent_id)}")
                words += _service(event.response)
            case ev.ResponseCompleted() | ev.ResponseIncomplete() | ev.ResponseFailed():
                body = event.response
                if isinstance(body.continued_by, str):
                    self.names.add(body.continued_by, f"{short(body.id)}.next")
                    words.append(f"continued by {short(body.continued_by)}")
                words.append(f"[{', '.join(self.item(item) for item in body.output)}]")
                if details := body.incomplete_details:
                    words.append("reason=" + " ".join(short(str(each)) for each in details.values()))
                words += [f"error={body.error['code']}"] if body.error else []
                words += _service(body)
                if body.usage is not None:
                    words.append(f"usage={body.usage['input_tokens']}+{body.usage['output_tokens']}")
            case ev.OutputItemAdded() | ev.OutputItemDone():
                words.append(f"[{event.output_index}] {self.item(event.item)}")
            case ev.ContentPartAdded() | ev.ContentPartDone():
                words.append(f"{short(event.item_id)}/{event.content_index} {_part(event.part)}")
            case ev.OutputTextDelta() | ev.RefusalDelta():
                words.append(f"{short(event.item_id)}/{event.content_index} {_text(event.delta)}")
            case ev.OutputTextDone():
                words.append(f"{short(event.item_id)}/{event.content_index} {_text(event.text)}")
            case ev.RefusalDone():
                words.append(f"{short(event.item_id)}/{event.content_index} {_text(event.refusal)}")
            case ev.ToolCallStarted():
                words.append(f"{short(event.response_id)} {short(event.call_id)} {event.name} {event.execution_id}")
            case ev.ToolApprovalRequested():
                words.append(f"{short(event.response_id)} {short(event.call_id)}")
            case ev.ToolApprovalDecided():
                words.append(f"{short(event.call_id)} approved={_yes(event.approved)} by={event.by}")
            case ev.ContentRetracted():
                words.append(f"{short(event.item_id)}/{event.content_index} {event.start}-{event.end} {event.category}")
            case ev.ArgumentsDelta():
                words.append(f"{short(event.item_id)} {event.delta}")
            case ev.ArgumentsDone():
                words.append(f"{short(event.item_id)} {event.name} {event.arguments}")
            case _:
                pass
        return " ".join(words) + (self.private(private) if private is not None else "")

    def private(self, private: ev.Private) -> str:
        words = [f"tokens={len(private.tokens) // 4}"] if private.tokens else []
        words += [f"fingerprint={private.fingerprint}"] if private.fingerprint else []
        words += [f"tail={_text(private.tail)}"] if private.tail else []
        for name in ("seed", "temperature", "max_output_tokens", "tool_choice"):
            if (value := getattr(private.sampling, name, None)) is not None:
                words.append(f"{name}={value}")
        words += [f"cut={self.names.short(private.cut)}"] if private.cut else []
        words += [f"after={self.names.short(private.after)}"] if private.after else []
        return f"  ({' '.join(words)})" if words else ""

    def item(self, item: Item) -> str:
        who = f"{self.names.short(item.id)} parent={self.names.short(item.parent_id)} {item.status}"
        match item:
            case Message():
                usual = (OutputText, Refusal) if item.role == "assistant" else InputText
                odd = "" if all(isinstance(part, usual) for part in item.content) else " (parts of another role's kind)"
                return f"{item.role} {who} {' '.join(_part(part) for part in item.content) or '(empty)'}{odd}"
            case FunctionCall():
                return f"call {self.names.short(item.call_id)} {who} {item.name} {item.arguments or '(empty)'}"
            case FunctionCallOutput():
                wrong = " (error)" if item.is_error else ""
                return f"output of {self.names.short(item.call_id)} {who} {_text(item.output)}{wrong}"
            case _:
                assert_never(item)


def _part(part: Any) -> str:
    return f"refusal {_text(part.refusal)}" if isinstance(part, Refusal) else _text(part.text)


def _text(text: str | None) -> str:
    return "-" if text is None else json.dumps(text, ensure_ascii=False)


def _other(model: str) -> list[str]:
    return [] if model == "sim" else [f"model={model}"]


def _service(body: ev.ResponseBody) -> list[str]:
    """Returns which model writes it, if not the session's own, and what admission said of it."""
    words = [f"metadata={json.dumps(body.metadata)}"] if body.metadata else []
    return (
        words + _other(body.model) + ([f"service={json.dumps(body.service)}"] if isinstance(body.service, dict) else [])
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _head(head: Any) -> str:
    words = [f" title={_text(head.title)}"] if head.title is not None else []
    words += [f" model={head.model}"] if head.model != "sim" else []
    words += ([] if head.listed else [" unlisted"]) + ([" deleted"] if head.deleted_at else [])
    return "".join(words)


def _usage(usage: Usage) -> str:
    return f"{usage.input_tokens}+{usage.output_tokens}"


def replayed(transcript: str) -> str:
    """The transcript with what its input leads to now."""
    player = Player()
    lines: list[str] = []
    expected = False  # inside what an earlier run had said
    block: list[str] = []
    for line in transcript.splitlines():
        if expected:
            expected = bool(line)
            if expected:
                continue
        if line == "----":
            lines.append(line)
            for each in block:
                lines.extend(player.play(each))
            block, expected = [], True
            continue
        if line and not line.startswith("#"):
            block.append(line)
        lines.append(line)
    assert not block, f"input without ----: {block}"
    return "\n".join(lines) + "\n"
