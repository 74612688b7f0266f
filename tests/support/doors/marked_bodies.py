"""Bodies for every HTTP route, with a marker in each of their texts; `tests/attacks/test_markers.py` sends them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

Sample = dict[str, Any]


def file_part(m: Iterator[str], kind: str = "input_file") -> Sample:
    """A file, in each shape that a door takes; no such file is there."""
    names = {name: next(m) for name in ("file_id", "filename", "file_data")}
    return {"type": kind, **names, "file": {name: next(m) for name in ("file_id", "filename", "file_data")}}


def image_parts(m: Iterator[str]) -> list[Sample]:
    """Images, in each shape that a door takes; no such image is there."""
    return [{"type": "input_image", "image_url": next(m)}, {"type": "image_url", "image_url": {"url": next(m)}}]


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
            for name in ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")
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
        {"model": "simulated", "messages": [{"role": "user", "content": image_parts(m)}]},
        {"model": "simulated", "messages": user, "tool_choice": {"type": "function", "function": {"name": next(m)}}},
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
        {
            "type": "file_search_call",
            "call_id": next(m),
            "queries": [next(m)],
            "results": [{next(m): next(m)}],
            "skipped": [next(m)],
            "reasons": {next(m): next(m)},
        },
        {"type": "function_call_output", "call_id": next(m), "output": [{"type": "input_text", "text": next(m)}]},
        {"type": "function_call_output", "call_id": next(m), "output": [{"type": "refusal", "refusal": next(m)}]},
    ]


def containers(m: Iterator[str]) -> list[Sample]:
    """Tools of code, and of searches, that are refused."""
    return [
        {"type": "code_interpreter", "container": next(m)},
        {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [next(m)]}},
        {"type": "file_search", "vector_store_ids": [next(m)], "ranking_options": {next(m): next(m)}},
        {"type": "file_search", "vector_store_ids": ["vs_x"], "filters": {next(m): next(m)}},
    ]


def item_refusals(m: Iterator[str]) -> list[Sample]:
    return [
        {"type": next(m)},
        {"type": "compaction", "encrypted_content": next(m)},
        {"type": "mcp_approval_response", "approval_request_id": next(m), "approve": True},
        {"role": "user", "content": [{"type": next(m)}]},
        {"role": "user", "content": [file_part(m)]},
        {"role": "system", "content": [file_part(m, "file")]},
        {"role": "user", "content": image_parts(m)},
        {"type": "function_call_output", "call_id": "x", "output": [{"type": next(m)}]},
        {"type": "function_call_output", "call_id": "x", "output": [file_part(m)]},
        {"type": "function_call_output", "call_id": "x", "output": image_parts(m)},
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


def search_scope(m: Iterator[str]) -> Sample:
    """A scope of searches in a vector store that does not exist."""
    return {"vector_store_ids": [next(m)], "filters": {next(m): next(m)}}


def searching_tool(m: Iterator[str]) -> Sample:
    """A tool with a scope of searches that is not the server's `file_search`: it is refused."""
    return {"type": "function", "name": "x", "server": True, "search": search_scope(m)}


def running_tool(m: Iterator[str]) -> Sample:
    """A tool with files for its runs that is not the server's `code_interpreter`: it is refused."""
    return {"type": "function", "name": "x", "server": True, "file_ids": [next(m)]}


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
        {"type": "image", "source": {"type": "url", "url": next(m)}},
        {"type": "tool_result", "tool_use_id": next(m), "content": [{"type": next(m), **document_of(m)}]},
        {"type": next(m), "text": next(m)},
    ]
    form = {"type": "json_schema", "schema": schema(m)}
    tool = {"name": next(m), "description": next(m), "input_schema": schema(m)}
    asked = {
        "thinking": {"type": "disabled", next(m): next(m)},
        "context_management": {next(m): next(m)},
        **bookkeeping(m),
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
    source = {"type": next(m), **{name: next(m) for name in ("data", "media_type", "file_id", "url")}}
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
    return [{"input": next(m), "model": next(m)}, {"input": [next(m)]}, {"input": [{"type": "text", "text": next(m)}]}]


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
            {"input": [{"role": "user", "content": image_parts(m)}]},
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
        ("post", "/v1/vector_stores"): [
            {"name": next(m), **metadata},
            {"embedding_model": next(m)},
            {"file_ids": [next(m)]},
        ],
        ("post", "/v1/vector_stores/{store_id}"): [{"name": next(m), **metadata}],
        ("post", "/v1/vector_stores/{store_id}/search"): [
            {"query": next(m), "filters": {next(m): next(m)}},
            {"query": [next(m)]},
        ],
        ("post", "/v1/vector_stores/{store_id}/files"): [a_document(m), {"file_id": next(m)}],
        ("post", "/v1/vector_stores/{store_id}/files/{file_id}"): [{"attributes": {next(m): next(m)}}],
        ("post", "/v1/vector_stores/{store_id}/file_batches"): [
            {"files": [a_document(m), {"file_id": next(m)}]},
            {"file_ids": [next(m)], "attributes": {next(m): next(m)}},
        ],
        ("put", "/v1/tools/{name}"): [
            {"url": next(m), "headers": {"a": next(m)}, "description": next(m), "parameters": schema(m)},
            {"url": "https://x.example/", "description": next(m), "parameters": schema(m)},
        ],
        ("put", "/v1/tool_servers/{server}"): [
            {"url": next(m), "headers": {"a": next(m)}},
            *({"url": "https://x.example/", name: [next(m)]} for name in ("allow", "approve", "idempotent")),
        ],
        ("post", "/v1/tools/agreements"): [{"server": next(m), "tools": {next(m): next(m)}}],
        ("post", "/v1/files"): [{"file": next(m)}],  # no form: refused
        ("post", "/v1/keys"): [{"tenant": next(m), "user": next(m), "name": next(m), "reason": next(m)}],
        ("post", "/v1/reviews/{review_id}/decide"): [{"outcome": "upheld", "note": next(m)}],
        ("post", "/v1/operator/encryption"): [{"tenant": next(m)}],
        ("post", "/v1/operator/revocations"): [{"issuer": next(m), "subject": next(m), "token_id": next(m)}],
        ("post", "/v1/operator/sessions/{tenant}/{session}/handoff"): [{"replica": next(m), "to": next(m)}],
    }
