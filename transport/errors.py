"""The one table of error codes: what each becomes on every door.

A code is API. `sessions.model.errors` says what kind of error it is; this table adds the HTTP status, the gRPC status
and, where an error ends a WebSocket, its close code. The close codes that make a client's next move plain are
docs/protocol.md 6.1's: it comes back after 1001, 1006, 1011, 1012, 1013, 4402, 4408 and 4412, and after no other.

Does not know: who raises what, and how an error is written down on a door.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sessions.model.errors import SessileError

UNSUPPORTED_DATA: Final = 1003
INVALID_DATA: Final = 1007
INTERNAL: Final = 1011
RESTART: Final = 1012
TRY_LATER: Final = 1013
BAD_FRAME: Final = 4400
UNAUTHORIZED: Final = 4401
TOKEN_EXPIRED: Final = 4402
FORBIDDEN: Final = 4403
SLOW_READER: Final = 4408
HEARTBEAT: Final = 4412


class ErrorRow(NamedTuple):
    http: int
    grpc: str
    close: int | None = None  # set where the error ends a connection


_ROWS: Final[dict[ErrorRow, str]] = {
    ErrorRow(400, "FAILED_PRECONDITION"): ("content_filter moderation_unavailable tool_unavailable response_cancelled"),
    ErrorRow(400, "FAILED_PRECONDITION", BAD_FRAME): "hello_expected hello_repeated",
    ErrorRow(400, "INVALID_ARGUMENT"): (
        "invalid_request reason_required unknown_parameter missing_required_parameter unsupported_parameter "
        "empty_prompt context_length_exceeded too_many_pins user_required file_type_unsupported file_unreadable "
        "image_type_unsupported image_unreadable image_not_permitted"
    ),
    ErrorRow(400, "INVALID_ARGUMENT", BAD_FRAME): "bad_frame",
    ErrorRow(400, "UNIMPLEMENTED"): "unknown_type",
    ErrorRow(401, "UNAUTHENTICATED", UNAUTHORIZED): "unauthorized invalid_api_key",
    ErrorRow(401, "UNAUTHENTICATED", TOKEN_EXPIRED): "token_expired",
    ErrorRow(403, "PERMISSION_DENIED", FORBIDDEN): "forbidden",
    ErrorRow(
        403, "PERMISSION_DENIED"
    ): "sharing_disabled memories_disabled push_disabled tools_disabled model_not_allowed",
    ErrorRow(404, "NOT_FOUND"): (
        "model_not_found session_not_found item_not_found response_not_found replica_not_found call_not_found "
        "key_not_found review_not_found share_not_found memory_not_found compaction_not_found "
        "subscription_not_found tool_not_found file_not_found vector_store_not_found vector_store_file_not_found "
        "not_found"
    ),
    ErrorRow(405, "UNIMPLEMENTED"): "method_not_allowed",
    ErrorRow(408, "DEADLINE_EXCEEDED"): "request_timeout",
    ErrorRow(408, "DEADLINE_EXCEEDED", BAD_FRAME): "hello_timeout",
    ErrorRow(408, "RESOURCE_EXHAUSTED", SLOW_READER): "slow_reader",
    ErrorRow(408, "UNAVAILABLE", HEARTBEAT): "heartbeat_lost",
    ErrorRow(409, "ABORTED"): "response_in_progress tools_pending review_claimed session_stays",
    ErrorRow(
        409, "ALREADY_EXISTS"
    ): "idempotency_conflict session_exists call_answered appealed_already tool_changed tool_exists",
    ErrorRow(409, "FAILED_PRECONDITION"): (
        "session_full session_quarantined not_withheld nothing_to_share nothing_to_compact review_not_claimed "
        "review_decided response_already_completed response_not_active"
    ),
    ErrorRow(410, "NOT_FOUND"): "session_deleted",
    ErrorRow(413, "RESOURCE_EXHAUSTED"): (
        "content_too_large too_large file_too_large file_too_complex image_too_complex"
    ),
    ErrorRow(415, "INVALID_ARGUMENT"): "unsupported_content_encoding",
    ErrorRow(426, "UNIMPLEMENTED"): "upgrade_required",
    ErrorRow(429, "RESOURCE_EXHAUSTED"): "rate_limited quota_exceeded too_many_subscriptions file_quota_exceeded",
    ErrorRow(500, "INTERNAL"): "tool_call_invalid compaction_failed",
    ErrorRow(500, "INTERNAL", INTERNAL): "internal_error",
    ErrorRow(502, "UNAVAILABLE"): "answer_cut_short",
    ErrorRow(503, "RESOURCE_EXHAUSTED"): "queue_full embeddings_full",
    ErrorRow(503, "UNAVAILABLE"): (
        "limits_unavailable directory_unavailable engine_unavailable outcome_unknown fenced sign_in_unavailable "
        "starting embeddings_unavailable "
        "vector_stores_unavailable filters_unavailable"
    ),
    ErrorRow(503, "UNAVAILABLE", RESTART): "draining",
    ErrorRow(503, "UNAVAILABLE", TRY_LATER): "overloaded journal_unavailable mcp_server_unavailable",
}
CODES: Final = {code: row for row, codes in _ROWS.items() for code in codes.split()}
"""The statuses and the close code of each public error code; they are the same at every door."""

_INNER: Final = {
    "too_large": "append_too_large",
    "internal_error": "body_unreadable internal journal_hole tokenizer_failed",
    "directory_unavailable": (
        "directory_closed directory_forbids directory_full directory_outcome_unknown directory_script_failed "
        "breakers_unavailable results_unavailable"
    ),
    "embeddings_unavailable": "no_embeddings",
    "vector_stores_unavailable": "no_vector_stores",
    "not_found": "erasure_not_found",
    "engine_unavailable": "engine_failed engine_lost engine_refused model_not_loaded no_desk no_replica",
    "invalid_request": "invalid_format invalid_logit_bias invalid_schema invalid_text not_encrypted",
    "journal_unavailable": (
        "journal_away journal_broken journal_closed journal_damaged journal_disk_full journal_read_only "
        "journal_refused journal_slow journal_taken keys_unavailable usage_stream_away push_service_away"
    ),
    "outcome_unknown": "journal_outcome_unknown results_outcome_unknown",
    "overloaded": (
        "documents_unavailable image_unreachable file_workers_unavailable file_folder_unavailable "
        "journal_overloaded mailbox_full schemas_unavailable"
    ),
    "fenced": "lease_missing replica_replaced replica_unreachable session_moving session_unavailable",
    "limits_unavailable": "limits_outcome_unknown",
    "session_quarantined": "quarantined",
    "unsupported_parameter": "recovery_incompatible",
    "draining": "shutting_down",
}
INNER: Final = {code: public for public, codes in _INNER.items() for code in codes.split()}
"""Internal error codes, with the public code that clients see instead."""

STARTUP: Final = frozenset(
    {
        "address_unavailable",
        "bad_brownout_model",
        "bad_chat_template",
        "bad_directory_url",
        "bad_key_service",
        "bad_kv_folder",
        "bad_master_key",
        "bad_model",
        "bad_model_bytes",
        "bad_model_file",
        "device_unsuitable",
        "directory_unsuitable",
        "disk_full",
        "engine_not_installed",
        "hub_offline",
        "hub_unavailable",
        "invalid_setting",
        "journal_archived",
        "journal_backed_up",
        "journal_busy",
        "journal_encrypted",
        "journal_exists",
        "journal_folder_locked",
        "journal_folder_unusable",
        "journal_foreign",
        "journal_key_missing",
        "journal_newer",
        "journal_sqlite_old",
        "journal_unusable",
        "memory_too_small",
        "model_gated",
        "model_not_pulled",
        "model_unknown",
        "replica_differs",
        "session_not_in_backup",
        "replica_not_restored",
        "replication_not_possible",
        "unknown_journal",
    }
)
"""Error codes that only stop a server from starting, or a command line. Clients never get them."""


def public_code(code: str) -> str:
    """Returns the code that clients see for an error's code; `internal_error` for one that is in no table (a bug)."""
    if code in CODES:
        return code
    return INNER.get(code, "internal_error")


def row(code: str) -> ErrorRow:
    return CODES[public_code(code)]


def public(error: SessileError) -> dict[str, Any]:
    """Returns the `error` object for clients. If the code is in no table, its message is replaced too."""
    body = error.public()
    body["code"] = public_code(error.code)
    if error.code not in CODES and error.code not in INNER:
        body["message"] = "The server failed to carry this out."
    return body


_ANTHROPIC_PATH: Final = "/v1/messages"
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OPENAI_PATHS: Final = tuple(
    f"/v1/{name}"
    for name in (
        "chat/completions",
        "completions",
        "conversations",
        "embeddings",
        "files",
        "models",
        "moderations",
        "responses",
        "vector_stores",
    )
)


def body_at(path: str, error: SessileError, request_id: str = "") -> dict[str, Any]:
    """Returns the body of a refusal in the shape that clients of a path expect: OpenAI's (with a code for wrong keys),
    Anthropic's, or ours."""
    if path.startswith(_ANTHROPIC_PATH):
        return anthropic_body(error, request_id)
    return {"error": openai_public(error) if path.startswith(_OPENAI_PATHS) else public(error)}


def anthropic_body(error: SessileError, request_id: str = "") -> dict[str, Any]:
    """Returns an error as Anthropic's clients expect it: a refusal's body, or the `error` event of a stream."""
    body = public(error)
    kind = _ANTHROPIC_TYPES.get(row(error.code).http, "invalid_request_error" if error.status < 500 else "api_error")
    message = body["message"]
    if body["code"] == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # what agents look for, to write a summary and go on
    shown = {"type": kind, "message": message}
    if body["code"] != "unauthorized":  # Anthropic's own error has no more
        shown |= {"code": body["code"], "param": body.get("param")}
    return {"type": "error", "error": shown, "request_id": request_id or None}


def openai_public(error: SessileError) -> dict[str, Any]:
    """Returns the `error` object as OpenAI's clients expect it."""
    body = public(error)
    return body if body["code"] != "unauthorized" else {**body, "code": "invalid_api_key"}
