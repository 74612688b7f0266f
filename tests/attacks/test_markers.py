"""Every text that a prompt holds was judged: a marker in every field of every door, and what the filters were shown.

A field that is new at a door and carries no marker here fails; one that can reach a prompt past the filters, too.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple

import grpc.aio
import httpx
import msgspec
import pytest
from google.protobuf import json_format
from websockets.asyncio.client import connect

from inference.simulated import SimulatedOptions
from tests.support.doors import markers as mk
from tests.support.doors.assembly import Assembly, assembled
from tests.support.doors.grpc_door import ENDS, Talk
from transport.grpc_api import sessile_pb2 as pb
from transport.grpc_api.server import GrpcServer
from transport.grpc_api.sessile_pb2_grpc import SessionsStub
from transport.protocol.frames import ClientFrame

ENGINE: Final = SimulatedOptions(step_base_s=0.0005, answer_tokens_mean=4)
Sample = dict[str, Any]


class Recorded(NamedTuple):
    assembly: Assembly
    filters: mk.RecordingFilters
    prompts: list[str]

    def read(self) -> set[str]:
        """The markers that a model read."""
        return {marker for prompt in self.prompts for marker in mk.MARKER.findall(prompt)}

    def unjudged(self) -> set[str]:
        return self.read() - {marker for text in self.filters.judged for marker in mk.MARKER.findall(text)}


@pytest.fixture
async def recorded() -> AsyncIterator[Recorded]:
    prompts: list[str] = []
    filters = mk.RecordingFilters()
    async with assembled(engine=mk.RecordingEngine(ENGINE, prompts), filters=filters) as assembly:
        yield Recorded(assembly, filters, prompts)


# -- what is sent -----------------------------------------------------------------------------------------------------


def file_part(m: Iterator[str], kind: str = "input_file") -> Sample:
    """A file, in each shape that a door takes; no such file is there."""
    names = {name: next(m) for name in ("file_id", "filename", "file_data")}
    return {"type": kind, **names, "file": {name: next(m) for name in ("file_id", "filename", "file_data")}}


def given_file(m: Iterator[str]) -> Sample:
    """One that is read: its name, and its bytes."""
    return {"filename": f"{next(m)}.txt", "file_data": b64encode(f"says {next(m)}".encode()).decode()}


def schema(m: Iterator[str]) -> Sample:
    """A function's parameters, with a marker wherever JSON schema takes a text."""
    return {
        "type": "object",
        "title": next(m),
        "properties": {
            next(m): {"type": "string", "description": next(m), "enum": [next(m)], "default": next(m)},
            "list": {"type": "array", "items": {"const": next(m)}, "examples": [[next(m)]]},
        },
        next(m): next(m),
    }


def function(m: Iterator[str]) -> Sample:
    return {"name": next(m), "description": next(m), "parameters": schema(m)}


def bookkeeping(m: Iterator[str]) -> Sample:
    """What coding agents send along for themselves."""
    return {"client_metadata": {next(m): next(m)}}


def foreign_tools(m: Iterator[str]) -> list[Sample]:
    """Kinds of tools that nobody here carries out: left out, unless the choice names one."""
    return [{"type": next(m), **function(m)}]


def sampling(m: Iterator[str]) -> Sample:
    return {
        "stop": [next(m)],
        "metadata": {next(m): next(m)},
        **bookkeeping(m),
        "prompt_cache_options": {next(m): next(m)},
        **{
            name: next(m)
            for name in (
                "user",
                "safety_identifier",
                "prompt_cache_key",
                "prompt_cache_retention",
                "service_tier",
            )
        },
    }


def chat(m: Iterator[str]) -> list[Sample]:
    call, second = next(m), next(m)
    arguments = json.dumps({next(m): next(m)})
    whole = {
        "model": "simulated",
        "messages": [
            {"role": "system", "content": next(m), "name": next(m)},
            {"role": "user", "content": [{"type": "text", "text": next(m)}, {"type": "text", "text": next(m)}]},
            {"role": "user", "content": [{"type": "text", "text": next(m)}, {"type": "file", "file": given_file(m)}]},
            {"role": "assistant", "content": next(m), "refusal": next(m)},
            {"role": "developer", "content": next(m)},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": next(m)}, {"type": "refusal", "refusal": next(m)}],
                "tool_calls": [
                    {"id": each, "type": "function", "function": {"name": next(m), "arguments": arguments}}
                    for each in (call, second)
                ],
            },
            {"role": "tool", "tool_call_id": call, "content": next(m)},
            {"role": "tool", "tool_call_id": second, "content": [{"type": "text", "text": next(m)}]},
            {"role": "user", "content": next(m)},
        ],
        "tools": [{"type": "function", "function": function(m)}, {"type": "function", "function": function(m)}],
        "reasoning_effort": next(m),
        "verbosity": next(m),
        **sampling(m),
    }
    user = [{"role": "user", "content": next(m)}]
    form = {"name": next(m), "description": next(m), "schema": schema(m)}
    return [
        whole,
        {
            "model": "simulated",
            "messages": user,
            "stop": next(m),
            "response_format": {"type": "json_schema", "json_schema": form},
        },
        # refused
        {"model": next(m), "messages": user, "logit_bias": {next(m): 1}},
        {"model": "simulated", "messages": [{"role": "user", "content": [{"type": next(m), "text": "x"}]}]},
        {"model": "simulated", "messages": [{"role": "user", "content": [file_part(m)]}]},
        {"model": "simulated", "messages": [{"role": "user", "content": [file_part(m, "file")]}]},
        {
            "model": "simulated",
            "messages": user,
            "tool_choice": {"type": "function", "function": {"name": next(m)}},
        },
        {"model": "simulated", "messages": user, "tools": foreign_tools(m)},
        {"model": "simulated", "messages": user, "tool_choice": {"type": next(m)}},
    ]


def items(m: Iterator[str]) -> list[Sample]:
    """Items of `/v1/responses` and `/v1/conversations`."""
    call = next(m)
    return [
        {"id": next(m), "role": "system", "content": next(m)},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": next(m)}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": next(m)}]},
        {"role": "user", "content": [{"type": "input_text", "text": next(m)}, {"type": "input_file", **given_file(m)}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": next(m)}]},
        {"type": "function_call", "call_id": call, "name": next(m), "arguments": json.dumps({next(m): next(m)})},
        {"type": "function_call_output", "call_id": call, "output": next(m)},
        {
            "type": "code_interpreter_call",
            "call_id": next(m),
            "code": next(m),
            "outputs": [{"type": "logs", "logs": next(m)}],
        },
        {"type": "function_call_output", "call_id": next(m), "output": [{"type": "input_text", "text": next(m)}]},
        {"type": "function_call_output", "call_id": next(m), "output": [{"type": "refusal", "refusal": next(m)}]},
    ]


def containers(m: Iterator[str]) -> list[Sample]:
    """Tools of code that are refused."""
    return [
        {"type": "code_interpreter", "container": next(m)},
        {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [next(m)]}},
    ]


def item_refusals(m: Iterator[str]) -> list[Sample]:
    return [
        {"type": next(m)},
        {"type": "compaction", "encrypted_content": next(m)},
        {"type": "mcp_approval_response", "approval_request_id": next(m), "approve": True},
        {"role": "user", "content": [{"type": next(m)}]},
        {"role": "user", "content": [file_part(m)]},
        {"role": "system", "content": [file_part(m, "file")]},
        {"type": "function_call_output", "call_id": "x", "output": [{"type": next(m)}]},
        {"type": "function_call_output", "call_id": "x", "output": [file_part(m)]},
    ]


def mcp_tools(m: Iterator[str]) -> list[Sample]:
    """What names MCP servers: there is none of these."""
    some, plain = {"tool_names": [next(m)]}, {"type": "mcp", "server_label": next(m)}
    brought = {name: next(m) for name in ("server_description", "server_url", "connector_id", "authorization")}
    return [
        {**plain, "allowed_tools": [next(m)], "require_approval": {"always": some, "never": {"tool_names": [next(m)]}}},
        {**plain, "allowed_tools": some},
        {**plain, **brought, "headers": {next(m): next(m)}},
    ]


def mcp_source(m: Iterator[str], approval: Any) -> Sample:
    where = {"server_label": next(m), "tool": next(m), "allowed": [next(m)], "unasked": [next(m)]}
    return {"name": "x", "server": True, "mcp": {**where, "approval": approval}}


def responses(m: Iterator[str]) -> list[Sample]:
    form = {"type": "json_schema", "name": next(m), "description": next(m), "schema": schema(m)}
    return [
        {
            "model": "simulated",
            "input": items(m),
            "instructions": next(m),
            "tools": [{"type": "function", **function(m)}],
            **sampling(m),
        },
        {"model": "simulated", "input": next(m), "stop": next(m), "text": {"format": form, "verbosity": next(m)}},
        *({"model": "simulated", "input": [each]} for each in item_refusals(m)),
        {"model": "simulated", "input": "x", "include": [next(m)], "reasoning": {next(m): next(m)}},
        *({"model": "simulated", "input": "x", "tools": [each]} for each in mcp_tools(m)),
        {"model": next(m), "input": "x"},
        *({"model": "simulated", "input": "x", "tools": [each]} for each in containers(m)),
        {"model": "simulated", "input": "x", "previous_response_id": next(m)},
        {"model": "simulated", "input": "x", "conversation": next(m)},
        {"model": "simulated", "input": "x", "conversation": {"id": next(m)}},
        {"model": "simulated", "input": "x", "tool_choice": {"type": "function", "name": next(m)}},
        {"model": "simulated", "input": "x", "tool_choice": {"type": next(m)}},
        {"model": "simulated", "input": "x", "tools": foreign_tools(m)},
    ]


def compactions(m: Iterator[str]) -> list[Sample]:
    kept = {name: next(m) for name in ("prompt_cache_key", "prompt_cache_retention", "service_tier")}
    return [
        {"model": "simulated", "input": items(m), "instructions": next(m), **kept, **bookkeeping(m)},
        {"model": "simulated", "input": next(m)},
        *({"model": "simulated", "input": [each]} for each in item_refusals(m)),
        {"model": next(m), "input": "x"},
        {"model": "simulated", "previous_response_id": next(m)},
    ]


def claude_counts(m: Iterator[str]) -> list[Sample]:
    """What both routes of Anthropic's API take."""
    call, second = next(m), next(m)
    source = {"type": "text", "data": next(m), "media_type": next(m)}
    document = {"type": "document", "title": next(m), "source": source}
    texts = [{"type": "text", "text": next(m)}, document]
    uses = [{"type": "tool_use", "id": each, "name": next(m), "input": {next(m): next(m)}} for each in (call, second)]
    results = [
        {"type": "tool_result", "tool_use_id": call, "content": next(m)},
        {
            "type": "tool_result",
            "tool_use_id": second,
            "is_error": True,
            "content": [{"type": "text", "text": next(m)}],
        },
    ]
    user = [{"role": "user", "content": next(m)}]
    refused = [
        {"type": "document", "title": next(m), "source": {"type": next(m), "data": next(m), "media_type": next(m)}},
        {"type": "document", "source": {"type": "base64", "data": next(m), "media_type": next(m)}},
        {"type": "document", "source": {"type": "file", "file_id": next(m)}},
        {"type": "tool_result", "tool_use_id": next(m), "content": [{"type": next(m), **document_of(m)}]},
        {"type": next(m), "text": next(m)},
    ]
    form = {"type": "json_schema", "schema": schema(m)}
    tool = {"name": next(m), "description": next(m), "input_schema": schema(m)}
    asked = {
        "thinking": {"type": "disabled", next(m): next(m)},
        "context_management": {next(m): next(m)},
        "cache_control": {next(m): next(m)},
        "speed": next(m),
    }
    return [
        {
            "model": "simulated",
            "system": [{"type": "text", "text": next(m)}],
            "messages": [
                {"role": "user", "content": texts},
                {"role": "assistant", "content": [{"type": "text", "text": next(m)}, *uses]},
                {"role": "user", "content": [*results, {"type": "text", "text": next(m)}]},
                {"role": "assistant", "content": next(m)},
                *user,
            ],
            "tools": [tool, {"type": next(m), **tool, "name": next(m)}],
            **asked,
        },
        {"model": "simulated", "system": next(m), "messages": user, "output_config": {"format": form}},
        {"model": "simulated", "messages": user, "output_format": form},
        {
            "model": "simulated",
            "messages": user,
            "output_config": {"effort": next(m), "task_budget": {next(m): next(m)}},
        },
        {"model": next(m), "messages": user},
        {"model": "simulated", "messages": user, "tools": [tool], "tool_choice": {"type": "tool", "name": next(m)}},
        {"model": "simulated", "messages": user, "mcp_servers": [{next(m): next(m)}]},
        {"model": "simulated", "system": [{"type": next(m), **document_of(m)}], "messages": user},
        *({"model": "simulated", "messages": [{"role": "user", "content": [each]}]} for each in refused),
    ]


def document_of(m: Iterator[str]) -> Sample:
    source = {"type": next(m), "data": next(m), "media_type": next(m), "file_id": next(m)}
    return {"text": next(m), "title": next(m), "source": source}


def claude(m: Iterator[str]) -> list[Sample]:
    named = {"metadata": {"user_id": next(m)}, "stop_sequences": [next(m)]}
    kept = {name: next(m) for name in ("service_tier", "inference_geo", "container")}
    return [{"max_tokens": 50, **each, **named, **kept} for each in claude_counts(m)]


def completions(m: Iterator[str]) -> list[Sample]:
    return [
        {"model": "simulated", "prompt": [next(m), next(m)], "echo": True, **sampling(m)},
        {"model": "simulated", "prompt": next(m), "stop": next(m)},
        {"model": next(m), "prompt": next(m), "logit_bias": {next(m): 1}},
    ]


def moderations(m: Iterator[str]) -> list[Sample]:
    """What no model reads: these go to filters alone."""
    return [
        {"input": next(m), "model": next(m)},
        {"input": [next(m)]},
        {"input": [{"type": "text", "text": next(m)}]},
    ]


def token_counts(m: Iterator[str]) -> list[Sample]:
    form = {"type": "json_schema", "name": next(m), "description": next(m), "schema": schema(m)}
    return [
        {"input": items(m), "instructions": next(m), "tools": [{"type": "function", **function(m)}]},
        {"input": next(m), "text": {"format": form, "verbosity": next(m)}, "reasoning": {next(m): next(m)}},
        *({"input": "x", "tools": [each]} for each in containers(m)),
        *({"input": [each]} for each in item_refusals(m)),
        {"model": next(m), "previous_response_id": next(m)},
        {"conversation": next(m)},
        {"conversation": {"id": next(m)}},
        {"input": "x", "tool_choice": {"type": "function", "name": next(m)}},
        {"input": "x", "tool_choice": {"type": next(m)}},
        {"input": "x", "tools": foreign_tools(m)},
        *({"input": "x", "tools": [each]} for each in mcp_tools(m)),
    ]


def tokenized(m: Iterator[str]) -> list[Sample]:
    return [
        {"prompt": next(m)},
        {"content": next(m), "model": next(m)},
        *[{key: sample[key] for key in sample if key in ("messages", "tools")} for sample in chat(m)],
    ]


def a_document(m: Iterator[str]) -> Sample:
    return {"text": next(m), "filename": next(m), "attributes": {next(m): next(m)}}


def bodies(m: Iterator[str]) -> dict[tuple[str, str], list[Sample]]:
    """By route; those that begin no answer are followed by a question in the same session."""
    metadata = {"metadata": {next(m): next(m)}}
    return {
        ("post", "/v1/chat/completions"): chat(m),
        ("post", "/v1/completions"): completions(m),
        ("post", "/v1/messages"): claude(m),
        ("post", "/v1/messages/count_tokens"): claude_counts(m),
        ("post", "/v1/moderations"): moderations(m),
        ("post", "/v1/responses/input_tokens"): token_counts(m),
        ("post", "/tokenize"): tokenized(m),
        ("post", "/detokenize"): [{"tokens": [1]}, {"tokens": [1], "model": next(m)}],
        ("post", "/v1/responses"): responses(m),
        ("post", "/v1/responses/compact"): compactions(m),
        ("post", "/v1/responses/{response_id}/steer"): [
            {"input": next(m)},
            {"input": [{"role": "user", "content": next(m)}]},
            {"input": [{"role": "user", "content": [{"type": next(m), "text": next(m), "refusal": next(m)}]}]},
            {"input": [{"role": "user", "content": [file_part(m)]}]},
        ],
        ("post", "/v1/memories"): [{"text": next(m)}],
        ("patch", "/v1/memories/{memory_id}"): [{"text": next(m)}],
        ("post", "/v1/conversations"): [{"items": items(m), **metadata}, *({"items": [e]} for e in item_refusals(m))],
        ("post", "/v1/conversations/{conversation}/items"): [
            {"items": items(m)},
            *({"items": [each]} for each in item_refusals(m)),
        ],
        ("post", "/v1/conversations/{conversation}"): [metadata],
        ("patch", "/v1/sessions/{session}"): [{"title": next(m), "instructions": next(m), **metadata}],
        ("post", "/v1/sessions/{session}/messages/appeal"): [{"content": next(m), "note": next(m)}],
        ("post", "/v1/sessions/{session}/responses/{response_id}/appeal"): [{"note": next(m)}],
        ("post", "/v1/sessions/{session}/responses/{response_id}/feedback"): [{"rating": "down", "reason": next(m)}],
        ("post", "/v1/sessions/{session}/shares"): [{"item_id": next(m)}],
        ("post", "/v1/push/subscriptions"): [
            {
                "endpoint": next(m),
                "keys": {"p256dh": next(m), "auth": next(m)},
                "label": next(m),
                "quiet_hours": {"start": 0, "end": 1, "time_zone": next(m)},
            },
            {"kind": "fcm", "token": next(m)},
        ],
        ("post", "/v1/embeddings"): [
            {"input": next(m)},
            {"input": [next(m)], "user": next(m)},
            {"input": "x", "model": next(m)},
        ],
        ("post", "/v1/rerank"): [
            {"query": next(m), "documents": [next(m), {"text": next(m)}]},
            {"query": "x", "documents": ["x"], "model": next(m)},
        ],
        ("post", "/v1/vector_stores"): [{"name": next(m), **metadata}, {"embedding_model": next(m)}],
        ("post", "/v1/vector_stores/{store_id}"): [{"name": next(m), **metadata}],
        ("post", "/v1/vector_stores/{store_id}/search"): [
            {"query": next(m), "filters": {next(m): next(m)}},
            {"query": [next(m)]},
        ],
        ("post", "/v1/vector_stores/{store_id}/files"): [a_document(m)],
        ("post", "/v1/vector_stores/{store_id}/files/{file_id}"): [{"attributes": {next(m): next(m)}}],
        ("post", "/v1/vector_stores/{store_id}/file_batches"): [{"files": [a_document(m)]}],
        ("post", "/v1/tools/agreements"): [{"server": next(m), "tools": {next(m): next(m)}}],
        ("post", "/v1/files"): [{"file": next(m)}],  # no form: refused
        ("post", "/v1/keys"): [{"tenant": next(m), "user": next(m), "name": next(m), "reason": next(m)}],
        ("post", "/v1/reviews/{review_id}/decide"): [{"outcome": "upheld", "note": next(m)}],
        ("post", "/v1/operator/encryption"): [{"tenant": next(m)}],
        ("post", "/v1/operator/revocations"): [{"issuer": next(m), "subject": next(m), "token_id": next(m)}],
        ("post", "/v1/operator/sessions/{tenant}/{session}/handoff"): [{"replica": next(m), "to": next(m)}],
    }


# -- HTTP -------------------------------------------------------------------------------------------------------------


async def test_all_that_a_prompt_holds_was_judged_over_http(recorded: Recorded) -> None:
    sent = bodies(mk.markers())
    document = recorded.assembly.server._app.app.openapi()  # type: ignore[attr-defined]
    definitions = document["components"]["schemas"]
    missing = {
        (method, path): mk.unmarked(
            mk.described(next(iter(operation["requestBody"]["content"].values()))["schema"], definitions),
            sent.get((method, path), []),
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    assert {route: paths for route, paths in missing.items() if paths} == {}

    async with httpx.AsyncClient(base_url=recorded.assembly.server.url, timeout=60) as http:
        for (method, path), samples in sent.items():
            made = (await http.post("/v1/conversations", json={})).json()["id"]
            others = {"tenant": "local", "response_id": "resp_x", "review_id": "rev_x", "memory_id": "mem_x"}
            others |= {"store_id": "vs_x", "file_id": "file_x", "batch_id": "vsfb_x"}
            url = path.format(conversation=made, session=made, **others)
            for number, sample in enumerate(samples):
                answer = await http.request(method, url, json=sample)
                if number == 0 and not any(
                    word in path for word in ("operator", "keys", "review", "push", "files", "{store_id}")
                ):
                    assert answer.status_code == 200 or path.endswith(
                        ("appeal", "feedback", "shares", "steer", "memories", "agreements", "_id}")
                    ), (
                        path,
                        answer.text,
                    )
                session = answer.json().get("id") if path == "/v1/conversations" else made
                if answer.status_code == 200 and "conversation" in path:
                    asked = {"model": "simulated", "input": "go on", "conversation": session}
                    (await http.post("/v1/responses", json=asked)).raise_for_status()

    whole = sent["post", "/v1/chat/completions"][0]
    conversation = sent["post", "/v1/conversations/{conversation}/items"][0]
    must = set(mk.MARKER.findall(json.dumps([whole["messages"], whole["tools"], conversation["items"]])))
    never = {whole["messages"][0]["name"], conversation["items"][0]["id"]}
    never |= set(mk.MARKER.findall(" ".join(_refusals([whole["messages"], conversation["items"]]))))
    assert must - never <= recorded.read()  # or else this shows nothing
    assert recorded.unjudged() == set()


def _refusals(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for name, each in value.items():
                if name == "refusal":
                    yield each
                else:
                    yield from _refusals(each)
        case list():
            for each in value:
                yield from _refusals(each)


# -- WebSocket --------------------------------------------------------------------------------------------------------


def frames(m: Iterator[str], session: str) -> list[Sample]:
    """Every frame that a client may send; those without a marker have no text of the caller's own."""
    here = {"session": session}
    text = {"format": {"type": "json_schema", "name": next(m), "schema": schema(m)}}
    options = {"stop": [next(m)], "logit_bias": {next(m): 1}, "tool_choice": next(m), "text": text}
    named = {"tool_choice": {"type": "function", "name": next(m)}, "stop": next(m)}
    settings = {"title": next(m), "metadata": {next(m): next(m)}, "instructions": next(m)}
    made: Sample = {"type": "session.create", **here, "tools": [{"type": "function", **function(m)}], **settings}
    parts: list[Sample] = [
        {"type": "input_text", "text": next(m)},
        {"type": "output_text", "text": next(m), "annotations": [{next(m): next(m)}]},
    ]
    whole: list[Sample] = [
        made,
        {"type": "message.create", **here, "content": next(m), "role": "assistant", "respond": False},
        {"type": "message.create", **here, "content": next(m), "role": "developer", "respond": False},
        {"type": "message.create", **here, "content": parts, "queue": True},
        {"type": "message.create", **here, "content": next(m), "queue": True},
        {"type": "message.create", **here, "content": f"{mk.CALLS} {next(m)}", "queue": True, "parent_id": None},
        {"type": "session.update", **here, "tools": [{"type": "function", **function(m)}], **settings},
        {"type": "message.create", **here, "content": next(m), "parent_id": None},
        {"type": "message.create", **here, "content": [{"type": "input_file", **given_file(m)}], "parent_id": None},
    ]
    stored = {name: next(m) for name in ("file_id", "filename", "media_type", "text")}
    data = {name: next(m) for name in ("file_data", "media_type", "text")}
    files: list[Sample] = [{"type": "input_file", **stored}, {"type": "input_file", **data}]
    refused: list[Sample] = [
        {"type": "message.create", **here, "content": files},
        {"type": "message.create", **here, "content": files[1:]},
        {"type": "message.edit", **here, "item_id": "x", "content": files},
        {"type": "response.steer", **here, "response_id": "x", "content": files},
        {"type": "session.create", "model": next(m)},
        {"type": "session.create", "tools": [{"type": "function", **mcp_source(m, [next(m)])}]},
        {"type": "session.update", **here, "tools": [{"type": "function", **mcp_source(m, [next(m)])}]},
        {"type": "message.create", **here, "content": "x", **options, "model": next(m)},
        {"type": "message.create", **here, "content": "x", **named, "parent_id": next(m)},
        {"type": "message.edit", **here, "item_id": next(m), "content": next(m), **options},
        {"type": "message.edit", **here, "item_id": "x", "content": parts, **named, "model": next(m)},
        {"type": "response.create", **here, "parent_id": next(m), **options},
        {"type": "response.create", **here, "parent_id": "x", **named, "model": next(m)},
        {"type": "response.cancel", **here, "response_id": next(m)},
        {"type": "response.steer", **here, "response_id": next(m), "content": next(m)},
        {"type": "response.steer", **here, "response_id": "x", "content": parts},
        {"type": "tool.output", **here, "call_id": next(m), "output": next(m)},
        {"type": "review.appeal", **here, "content": next(m), "note": next(m)},
        {"type": "review.appeal", **here, "response_id": next(m)},
        {"type": "feedback.set", **here, "response_id": next(m), "rating": "down", "reason": next(m)},
        {"type": "session.compact", **here, "item_id": next(m)},
        {"type": "compaction.undo", **here, "compaction_id": next(m)},
        {"type": "item.pin", **here, "item_id": next(m)},
        {"type": "tool.approve", **here, "call_id": next(m)},
        {"type": "subscribe", "session": "ses_elsewhere", "epoch": next(m), "offset": 0},
        {"type": "session.list", "after": next(m)},
        {"type": "session.search", "q": next(m), "after": next(m)},
    ]
    return [*whole, *refused]


IDS: Final = {"id", "session", "auth", "device", "resume[].session", "resume[].epoch"}  # names, which no prompt holds


async def test_all_that_a_prompt_holds_was_judged_over_websocket(recorded: Recorded) -> None:
    m = mk.markers()
    session = "ses_" + next(m)
    sent = frames(m, session)
    (reference,), definitions = msgspec.json.schema_components([ClientFrame], ref_template="#/$defs/{name}")
    missing = {}
    for kind, ref in reference["discriminator"]["mapping"].items():
        samples = [frame for frame in sent if frame["type"] == kind]
        paths = mk.unmarked(mk.described({"$ref": ref}, definitions), samples)
        missing[kind] = [path for path in paths if path not in IDS]
    assert {kind: paths for kind, paths in missing.items() if paths} == {}

    async with connect(recorded.assembly.ws, compression=None) as socket:
        talk = WebSocketTalk(socket, session)
        await talk.send({"type": "hello"}, *sent[:1])
        await talk.send({"type": "subscribe", "session": session})
        for frame in sent[1:]:
            await talk.send(frame)
        call = await talk.call()
        marker = next(m)
        await talk.send({"type": "tool.output", "session": session, "call_id": call, "output": marker})
        edited = next(m)
        await talk.send({"type": "message.edit", "session": session, "item_id": talk.items[0], "content": edited})
        await talk.settled()
    said = [part["text"] for part in sent[3]["content"]] + [sent[each]["content"] for each in (1, 2, 4, 5)]
    assert {marker, edited, *mk.MARKER.findall(" ".join(said))} <= recorded.read()
    assert set(mk.MARKER.findall(json.dumps([sent[0]["tools"], sent[6]["tools"]]))) <= recorded.read()
    assert recorded.unjudged() == set()


# -- gRPC -------------------------------------------------------------------------------------------------------------


def calls(m: Iterator[str], session: str) -> list[tuple[str, Sample]]:
    """(method, request); those of one stream are sent as commands of `Converse`, too."""
    here = {"session": session}
    plain = {
        "stop": [next(m)],
        "logit_bias": {next(m): 1},
        "tool_choice": next(m),
        "effort": next(m),
        "text": {"format": {"type": "json_schema", "name": next(m), "schema": schema(m)}},
    }
    tool = [{"type": next(m), **function(m)}]
    settings = {"title": next(m), "metadata": {next(m): next(m)}, "instructions": next(m)}
    parts = [{"type": "input_text", "text": next(m)}, {"type": "output_text", "text": next(m)}]
    files = [
        {"type": "input_file", "file_id": next(m), "filename": next(m), "media_type": next(m)},
        {"type": "input_file", "file_data": next(m)},
    ]
    whose = [("Send", {}), ("Edit", {"item_id": "x"}), ("Steer", {"response_id": "x"})]
    odd = [{"type": next(m), "text": "x", "refusal": next(m), "reasoning": next(m), "annotations": [next(m)]}]
    return [
        ("Create", {**here, **settings, "tools": [{"type": "function", **function(m)}]}),
        ("Send", {**here, "content": next(m), "role": "assistant", "no_response": True}),
        ("Send", {**here, "parts": parts, "queue": True}),
        ("Send", {**here, "content": f"{mk.CALLS} {next(m)}", "queue": True, "at_root": True}),
        ("Update", {**here, **settings, "tools": [{"type": "function", **function(m)}]}),
        ("Send", {**here, "content": next(m), "at_root": True}),
        # refused
        ("Create", {"session": next(m), "model": next(m), "tools": tool, "context_policy": next(m)}),
        ("Create", {**here, "tools": [mcp_source(m, next(m))]}),
        ("Update", {**here, "tools": [mcp_source(m, next(m))]}),
        (
            "Send",
            {
                **here,
                "model": next(m),
                "content": "x",
                "role": next(m),
                "parent_id": next(m),
                "sampling": plain,
                "parts": odd,
            },
        ),
        ("Edit", {**here, "item_id": next(m), "content": next(m), "parts": odd, "sampling": plain}),
        ("Edit", {**here, "item_id": "x", "parts": parts, "model": next(m)}),
        *((method, {**here, **named, "parts": [file]}) for method, named in whose for file in files),
        ("Respond", {**here, "parent_id": next(m), "sampling": plain, "model": next(m)}),
        ("Cancel", {**here, "response_id": next(m)}),
        ("Steer", {**here, "response_id": next(m), "content": next(m), "parts": odd}),
        ("Steer", {**here, "response_id": "x", "parts": parts}),
        ("AnswerTool", {**here, "call_id": next(m), "output": next(m)}),
        ("Update", {**here, "tools": tool, "clear": [next(m)], "context_policy": next(m)}),
        ("Appeal", {**here, "response_id": next(m), "content": next(m), "note": next(m)}),
        ("Rate", {**here, "response_id": next(m), "rating": next(m), "reason": next(m)}),
        ("Compact", {**here, "item_id": next(m)}),
        ("UndoCompaction", {**here, "compaction_id": next(m)}),
        ("Pin", {**here, "item_id": next(m)}),
        ("Approve", {**here, "call_id": next(m)}),
        ("List", {"after": next(m)}),
        ("History", {**here, "position": {"epoch": next(m)}}),
    ]


async def test_all_that_a_prompt_holds_was_judged_over_grpc(recorded: Recorded) -> None:
    m = mk.markers()
    session = "ses_" + next(m)
    sent = calls(m, session)
    service = pb.DESCRIPTOR.services_by_name["Sessions"]
    requests = {each.name: each.input_type for each in service.methods if each.name != "Converse"}
    missing = {}
    for method, message in requests.items():
        paths = mk.unmarked(mk.described_by(message), [sample for name, sample in sent if name == method])
        missing[method] = [path for path in paths if path not in IDS]
    assert {method: paths for method, paths in missing.items() if paths} == {}

    server = GrpcServer(recorded.assembly.gateway, host="127.0.0.1", port=0)
    assert await server.start()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub, begun, answer = SessionsStub(channel), 0, None
            for number, (method, sample) in enumerate(sent):
                request = json_format.ParseDict(
                    {"id": str(number), **sample} if "id" in requests[method].fields_by_name else sample,
                    getattr(pb, requests[method].name)(),
                )
                try:
                    if method == "History":
                        async for _ in stub.History(request):
                            pass
                        continue
                    answer = await getattr(stub, method)(request)
                except grpc.aio.AioRpcError:
                    assert number > 5
                    continue
                begun += bool(method != "Cancel" and getattr(answer, "response_id", ""))
            talk = Talk(stub.Converse(), pb.Open(session=session, position=pb.Position(offset=0)))
            made = await talk.until(lambda r: r.event.response_output_item_done.item.type == "function_call")
            output, edited, streamed = next(m), next(m), next(m)
            call = made.event.response_output_item_done.item.call_id
            await talk.say(tool_output=pb.ToolOutput(id="a", call_id=call, output=output))
            first = next(
                each.event.item_created.item for each in talk.seen if each.event.item_created.item.role == "user"
            )
            await talk.say(message_edit=pb.MessageEdit(id="b", item_id=first.id, content=edited))
            await talk.say(message_create=pb.MessageCreate(id="c", content=streamed, queue=True))
            await talk.hang_up()
            ended = sum(each.event.WhichOneof("event") in ENDS for each in await talk.rest())
            assert ended >= begun + 2
    finally:
        await server.stop()
    must = [sent[0][1]["tools"], sent[1][1]["content"], sent[2][1]["parts"], sent[3][1]["content"], sent[4][1]["tools"]]
    assert {output, edited, streamed, *mk.MARKER.findall(json.dumps(must))} - {"type"} <= recorded.read()
    assert recorded.unjudged() == set()


class WebSocketTalk:
    """Sends frames, each with an id, and reads until what they began has ended."""

    def __init__(self, socket: Any, session: str) -> None:
        self._socket = socket
        self._sent = 0
        self._open: set[str] = set()
        self.items: list[str] = []  # of messages that were sent
        self._calls: list[str] = []

    async def send(self, *sent: Mapping[str, Any]) -> None:
        """Sends, and reads up to the last one's answer."""
        named = []
        for frame in sent:
            self._sent += 1
            named.append(frame if frame["type"] == "hello" else {**frame, "id": str(self._sent)})
        await self._socket.send(json.dumps(named))
        while True:
            for frame in await self._read():
                if frame.get("id") == str(self._sent):
                    if frame["type"] == "ok" and frame.get("response_id") and sent[-1]["type"] != "response.cancel":
                        self._open.add(frame["response_id"])
                    return

    async def call(self) -> str:
        while not self._calls:
            await self._read()
        return self._calls[0]

    async def settled(self) -> None:
        while self._open:
            await self._read()

    async def _read(self) -> list[dict[str, Any]]:
        found = json.loads(await self._socket.recv())
        read = found if isinstance(found, list) else [found]
        for frame in read:
            event = frame.get("event", {})
            kind = event.get("type", "")
            if kind in ("response.completed", "response.incomplete", "response.failed"):
                self._open.discard(event["response_id"])
            elif kind == "item.created" and event["item"].get("role") == "user":
                self.items.append(event["item"]["id"])
            elif kind == "response.output_item.done" and event["item"]["type"] == "function_call":
                self._calls.append(event["item"]["call_id"])
        return read
