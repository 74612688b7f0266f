"""Planted secrets and forbidden phrases, split at every token boundary, through every door: does any of it get out?

    python -m bench.moderation.withheld                 # 10,000 streams, about three minutes
    python -m bench.moderation.withheld --streams 500 --seed 7

An engine in this process says what each stream plans: words, a planted span (each kind that a policy knows, see
`tests/unit/inference/moderation/test_output_filter.py`), more words; in two pieces cut at a boundary of the span, or in
random pieces, as text or inside a tool call's arguments or name. Tenants have policies that block or redact in
`window`, block in `strict`, and retract in `async`. A stream's reader is a WebSocket, chat/completions or responses
(streamed and not) or gRPC.

Bar (issue 6): 0 characters of a withheld span released in `window` and `strict`, in what the client received and in
the log; after a retraction 0 in any replay, snapshot, export; the next turn's context holds the released text only,
token by token. The verdict is the last line, and the exit status.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, cast

import grpc.aio
import httpx
from google.protobuf.json_format import MessageToJson
from websockets.asyncio.client import connect

from bench.support import report, run_bench
from inference.moderation import PolicyFilterSet
from inference.simulated import SimulatedOptions, decode
from sessions.machine.state import replay
from sessions.model.generation import Chunk, Finish, GenerationRequest
from sessions.model.journal_types import Loaded
from sessions.model.types import Principal, SessionKey, TenantId, unpack_tokens
from tests.support.doors.openai_server import ScriptedEngine, Serving, serving
from tests.support.doors.wire_client import SUBPROTOCOL, new_ulid
from tests.support.secret_spans import AROUND, SPANS
from transport.auth.authenticator import key_digest
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub

AT_ONCE = 24
ANSWER_S = 20.0
BEFORE, AFTER = "We said so: ", " and then 3 more words."
GOES_ON = " as it was."
POLICY = """
[policies.{name}]
mode = "{mode}"
[policies.{name}.output]
phrases = {{ deny = ["project nightjar"], action = "{action}" }}
pii = {{ action = "{action}" }}
secrets = {{ action = "{action}" }}
"""
POLICIES = {
    "default": ("window", "block"),
    "redact": ("window", "redact"),
    "strict": ("strict", "block"),
    "async": ("async", "retract"),
}
TOOL = {
    "type": "function",
    "name": "save",
    "parameters": {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]},
}


class Plan(NamedTuple):
    """One stream: what the engine says, in which pieces, and what a reader may see of it."""

    number: int
    kind: str
    policy: str
    place: str  # text, arguments, name
    door: str
    before: str
    span: str
    pieces: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"key-of-{self.policy}-{'x' * 24}"

    @property
    def tools(self) -> bool:
        return self.place != "text"


class Planned(ScriptedEngine):
    """Says the pieces of the plan whose number the last message holds; after a redaction or retraction, a few words."""

    def __init__(self) -> None:
        super().__init__(SimulatedOptions())
        self.plans: dict[int, Plan] = {}
        self.next_prompts: dict[int, list[int]] = {}  # of the turn behind a plan's

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk | Finish]:
        said = decode(request.prompt)
        number = int(re.findall(r"(?:plan|after) (\d+)", said)[-1])
        if said.rfind("after ") > said.rfind("plan "):
            self.next_prompts[number] = list(request.prompt)
            pieces: tuple[str, ...] = ("Fine.",)
        else:
            pieces = (GOES_ON,) if len(request.emitted) else self.plans[number].pieces
        for piece in pieces:
            await asyncio.sleep(0)
            yield Chunk(tuple(piece.encode()), piece)
        yield Finish("stop", len(request.prompt), 0)


def make_plans(count: int, seed: int) -> list[Plan]:
    """Every kind × every boundary of it, as often as it takes, over policies, places and doors drawn at random."""
    rng = random.Random(seed)
    boundaries = [(kind, at) for kind, span in SPANS.items() for at in range(1, len(span))]
    plans: list[Plan] = []
    while len(plans) < count:
        rng.shuffle(boundaries)
        for kind, at in boundaries[: count - len(plans)]:
            number = len(plans)
            place = rng.choices(("text", "arguments", "name"), (6, 3, 1))[0]
            policy = rng.choice([name for name in POLICIES if place == "text" or name != "async"])
            before, after = AROUND.get(kind, (BEFORE, AFTER))
            span = SPANS[kind]
            if place == "arguments":
                before, after = (
                    '<tool_call>{"name": "save", "arguments": {"note": "' + before,
                    after + '"}}</tool_call>',
                )
            elif place == "name":
                before, after = '<tool_call>{"name": "' + before, after + '", "arguments": {}}</tool_call>'
            text, cut = before + span + after, len(before) + at
            pieces = [text[:cut], text[cut:]]
            if rng.random() < 0.5:
                cuts = sorted({0, cut, len(text), *(rng.randrange(len(text)) for _ in range(rng.randrange(24)))})
                pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
            door = rng.choice(list(DOORS))
            plans.append(Plan(number, kind, policy, place, door, before, span, tuple(pieces)))
    return plans


# -- doors: each returns all that a client received, as text ---------------------------------------------------------


class Client(NamedTuple):
    http: httpx.AsyncClient
    ws: str
    stub: Any


def over(frame: str) -> bool:
    """A snapshot in which the answer has ended: what a reader gets whom a retraction overtook."""
    return '"mode":"snapshot"' in frame and '"open":[]' in frame and '"role":"assistant"' in frame


async def websocket(client: Client, plan: Plan) -> str:
    session, seen = f"s{plan.number}", []
    async with connect(f"{client.ws}/v1/ws", subprotocols=[SUBPROTOCOL], compression=None) as socket:
        for message in (
            {"type": "hello", "auth": plan.key},
            {"type": "session.create", "id": new_ulid(), "session": session, "tools": [TOOL] if plan.tools else []},
            {"type": "subscribe", "id": new_ulid(), "session": session, "offset": 0},
            {"type": "message.create", "id": new_ulid(), "session": session, "content": f"plan {plan.number}"},
        ):
            await socket.send(json.dumps(message))
            if "session.create" in message.values():
                while '"type":"ok"' not in str(await socket.recv()):
                    pass
        async for frame in socket:
            seen.append(str(frame))
            if re.search(r'"type":"response\.(completed|incomplete|failed)"', str(frame)) or over(str(frame)):
                return "\n".join(seen)
    raise AssertionError(f"{plan}: the connection ended")


def over_http(path: str, *, stream: bool) -> Callable[[Client, Plan], Coroutine[Any, Any, str]]:
    async def post(client: Client, plan: Plan) -> str:
        tool: Any = TOOL
        body: dict[str, Any] = {"model": "simulated", "stream": stream}
        if path == "/v1/chat/completions":
            tool = {"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}
            body["messages"] = [{"role": "user", "content": f"plan {plan.number}"}]
        else:
            body["input"] = f"plan {plan.number}"
        if plan.tools:
            body["tools"] = [tool]
        headers = {"authorization": f"Bearer {plan.key}", "x-session-id": f"s{plan.number}"}
        answer = await client.http.post(path, json=body, headers=headers)
        assert answer.status_code == 200 or "tool_call_invalid" in answer.text, answer.text
        return answer.text

    return post


async def over_grpc(client: Client, plan: Plan) -> str:
    session = f"s{plan.number}"
    metadata = (("authorization", f"Bearer {plan.key}"),)
    create = pb.SessionCreate(id=new_ulid(), session=session)
    if plan.tools:
        tool = create.tools.add(name="save")
        tool.parameters.update(cast(Any, TOOL["parameters"]))
    await client.stub.Create(create, metadata=metadata)
    call = client.stub.Converse(metadata=metadata)
    await call.write(pb.ConverseRequest(open=pb.Open(session=session, position=pb.Position(offset=0))))
    message = pb.MessageCreate(id=new_ulid(), session=session, content=f"plan {plan.number}")
    await call.write(pb.ConverseRequest(command=pb.Command(message_create=message)))
    seen = []
    while (reply := await call.read()) is not grpc.aio.EOF:
        seen.append(MessageToJson(reply, ensure_ascii=False))
        state = reply.resumed.state
        ended = reply.event.WhichOneof("event") in ("response_completed", "response_incomplete", "response_failed")
        if ended or (len(state.items) > 1 and not state.open):
            call.cancel()
            return "\n".join(seen)
    raise AssertionError(f"{plan}: the stream ended")


DOORS: dict[str, Callable[[Client, Plan], Coroutine[Any, Any, str]]] = {
    "websocket": websocket,
    "chat": over_http("/v1/chat/completions", stream=False),
    "chat streamed": over_http("/v1/chat/completions", stream=True),
    "responses": over_http("/v1/responses", stream=False),
    "responses streamed": over_http("/v1/responses", stream=True),
    "grpc": over_grpc,
}


# -- what came of it -------------------------------------------------------------------------------------------------


class Verdicts:
    """`leaked` counts characters of withheld spans that somebody could read."""

    def __init__(self) -> None:
        self.leaked = self.retracted_leaked = self.context_wrong = self.wrong = 0
        self.examples: list[str] = []
        self.seen: Counter[str] = Counter()

    def note(self, plan: Plan, what: str) -> None:
        if len(self.examples) < 10:
            self.examples.append(f"{what}: {plan}")


def released_text(serving_: Serving, plan: Plan) -> tuple[str, bytes, str, str]:
    """(all that the log's answer says, its ledger, the tail, the session): from the journal, folded."""
    key, log = next(
        (key, log)
        for key, log in reversed(serving_.journal.database._logs.items())  # it is among the newest
        if key == SessionKey(TenantId(plan.policy), key.session) and plan_in(log.records, plan)
    )
    state = replay(Loaded(log.head, None, tuple(log.records), (), True))
    answer = next(iter(state.answers.values()))
    items = [state.items[item] for item in answer.items]
    text = "".join(getattr(item, "text", "") or getattr(item, "arguments", "") for item in items)
    return text, answer.tokens, answer.tail, key.session


def plan_in(records: Any, plan: Plan) -> bool:
    return any(f"plan {plan.number}" == getattr(getattr(r.event, "item", None), "text", None) for r in records)


def leak(span: str, shown: str, before: str) -> int:
    """Characters of the span that stand in `shown` behind what comes before it, or anywhere as a stretch of six."""
    for length in range(len(span), 0, -1):
        if before and (before[-12:] + span[:length]) in shown:
            return length
    return 6 if any(span[at : at + 6] in shown for at in range(len(span) - 5)) else 0


def expected(plan: Plan) -> str | None:
    """The answer's text where it is certain; None where a call's error or a mark makes it another."""
    if plan.place == "text" and plan.policy == "default":
        return plan.before
    return "" if plan.policy == "strict" else None


async def check(serving_: Serving, client: Client, plan: Plan, received: str, found: Verdicts) -> None:
    text, tokens, tail, session = released_text(serving_, plan)
    raw_before = plan.before if plan.place == "text" else (BEFORE if plan.kind not in AROUND else AROUND[plan.kind][0])
    if plan.policy != "async":
        count = max(leak(plan.span, received, raw_before), leak(plan.span, text, raw_before))
        found.leaked += count
        if count:
            found.note(plan, f"{count} characters leaked")
        if (wanted := expected(plan)) is not None and text != wanted:
            found.wrong += 1
            found.note(plan, f"released {text!r}")
    else:
        if plan.door in ("chat", "responses") and leak(plan.span, received, plan.before):
            found.retracted_leaked += 1
            found.note(plan, f"an answer that was whole when it was given: {received}")
        await check_retracted(client, plan, session, found)
    if plan.place == "text" and decode(unpack_tokens(tokens)) + tail != text:
        found.context_wrong += 1
        found.note(plan, f"the ledger says {decode(unpack_tokens(tokens))!r} and {tail!r}")
    found.seen[f"{plan.policy}, {plan.place}, {plan.door}"] += 1


async def check_retracted(client: Client, plan: Plan, session: str, found: Verdicts) -> None:
    """Whoever comes later: replay, snapshot and export of the session have none of it."""
    headers = {"authorization": f"Bearer {plan.key}"}
    views = {}
    async with connect(f"{client.ws}/v1/ws", subprotocols=[SUBPROTOCOL], compression=None) as socket:
        await socket.send(json.dumps({"type": "hello", "auth": plan.key}))
        for name, at in (("replay", {"offset": 0}), ("snapshot", {})):
            await socket.send(json.dumps({"type": "subscribe", "id": new_ulid(), "session": session, **at}))
            frames = []
            async for frame in socket:
                frames.append(str(frame))
                if '"type":"caught_up"' in str(frame):
                    break
            views[name] = "\n".join(frames)
            await socket.send(json.dumps({"type": "unsubscribe", "id": new_ulid(), "session": session}))
    views["export"] = (await client.http.get(f"/v1/sessions/{session}/export", headers=headers)).text
    if "[withheld]" not in views["export"]:
        found.wrong += 1
        found.note(plan, f"nothing was taken back: {views['export']}")
    for name, view in views.items():
        if leak(plan.span, view, plan.before):
            found.retracted_leaked += 1
            found.note(plan, f"{name} after a retraction: {view}")


async def check_next_turn(serving_: Serving, engine: Planned, client: Client, plan: Plan, found: Verdicts) -> None:
    """The prompt of the turn behind: opening, question, exactly the released tokens, the next question."""
    text, tokens, tail, session = released_text(serving_, plan)
    async with connect(f"{client.ws}/v1/ws", subprotocols=[SUBPROTOCOL], compression=None) as socket:
        for message in (
            {"type": "hello", "auth": plan.key},
            {"type": "subscribe", "id": new_ulid(), "session": session},
            {"type": "message.create", "id": new_ulid(), "session": session, "content": f"after {plan.number}"},
        ):
            await socket.send(json.dumps(message))
        async for frame in socket:
            if re.search(r'"type":"response\.(completed|incomplete|failed)"', str(frame)):
                break
    tokenizer = engine.tokenizer
    answer = [*unpack_tokens(tokens), *(await tokenizer.text(tail) if tail else ())]
    between = [*tokenizer.answer_opening, *answer, *tokenizer.answer_closing]
    prompt = engine.next_prompts[plan.number]
    place = next((i for i in range(len(prompt)) if prompt[i : i + len(between)] == between), None)
    if place is None or plan.span in decode(prompt) or decode(answer) != text:
        found.context_wrong += 1
        found.note(plan, f"the next prompt is {decode(prompt)!r}, {prompt} without {between}")


async def main(given: argparse.Namespace) -> bool:
    engine, found = Planned(), Verdicts()
    plans = make_plans(given.streams, given.seed)
    engine.plans = {plan.number: plan for plan in plans}
    people = {name: Principal(tenant=TenantId(name), key_id=name, role="service") for name in POLICIES}
    keys = {key_digest(f"key-of-{name}-{'x' * 24}"): who for name, who in people.items()}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.toml"
        body = "".join(POLICY.format(name=name, mode=mode, action=act) for name, (mode, act) in POLICIES.items())
        path.write_text(body + "[tenants]\n" + "".join(f'{name} = "{name}"\n' for name in POLICIES))
        filters = PolicyFilterSet(str(path))
        await filters.open()
        try:
            async with serving(SimulatedOptions(), keys=keys, filters=filters, engine=engine) as made:
                server = GrpcServer(made.gateway, host="127.0.0.1", port=0)
                await server.start()
                http = httpx.AsyncClient(base_url=made.server.url, timeout=60)
                async with grpc.aio.insecure_channel(server.address) as channel, http:
                    client = Client(http, made.server.url.replace("http", "ws"), SessionsStub(channel))
                    room = asyncio.Semaphore(AT_ONCE)

                    async def one(plan: Plan) -> None:
                        async with room:
                            try:
                                async with asyncio.timeout(ANSWER_S):
                                    received = await DOORS[plan.door](client, plan)
                            except TimeoutError:
                                found.wrong += 1
                                found.note(plan, "no answer")
                                return
                            await check(made, client, plan, received, found)
                            if plan.place == "text" and plan.number % 4 == 0:
                                await check_next_turn(made, engine, client, plan, found)
                                found.seen["next turns"] += 1

                    for first in range(0, len(plans), 500):
                        async with asyncio.TaskGroup() as group:
                            for plan in plans[first : first + 500]:
                                group.create_task(one(plan))
                await server.stop()
        finally:
            await filters.close()
    by_policy: Counter[str] = Counter()
    for name, count in found.seen.items():
        by_policy[name.split(",")[0]] += count
    passed = not (found.leaked or found.retracted_leaked or found.context_wrong or found.wrong)
    for example in found.examples:
        print(example)
    figures: dict[str, Any] = {
        "streams": given.streams,
        "seed": given.seed,
        "kinds of span": len(SPANS),
        **{f"streams, {name}": count for name, count in sorted(by_policy.items()) if name != "next turns"},
        "characters of a withheld span released": found.leaked,
        "views after a retraction with some of it": found.retracted_leaked,
        "next turns looked at": by_policy["next turns"],
        "ledgers or contexts that say something else": found.context_wrong,
        "answers that are not what may be seen": found.wrong,
        "seconds": time.monotonic() - began,
    }
    report("withheld", figures)
    print("PASS" if passed else "FAIL")
    return passed


if __name__ == "__main__":
    run_bench(main, __doc__, streams=10000, seed=1)
