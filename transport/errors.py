"""The one table of error codes: what each becomes on every door.

A code is API. `sessions.model.errors` says what kind of error it is; this table adds the HTTP status, the gRPC status
and, where an error ends a WebSocket, its close code. The close codes that make a client's next move plain are
PROTOCOL.md §4's: after 1001, 1006, 1011, 1012, 1013, 4402, 4408 and 4412 it comes back, after all else it does not.

Does not know: who raises what, and how an error is written down on a door.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sessions.model.errors import SessileError

GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
INVALID_DATA: Final = 1007
TOO_BIG: Final = 1009
INTERNAL: Final = 1011
RESTART: Final = 1012
TRY_LATER: Final = 1013
BAD_FRAME: Final = 4400
UNAUTHORIZED: Final = 4401
TOKEN_EXPIRED: Final = 4402
FORBIDDEN: Final = 4403
SLOW_READER: Final = 4408
HEARTBEAT: Final = 4412

RECONNECT_AFTER: Final = frozenset({1001, 1006, 1011, 1012, 1013, 4402, 4408, 4412})


class ErrorRow(NamedTuple):
    http: int
    grpc: str
    close: int | None = None  # set where the error ends a connection


CODES: Final[dict[str, ErrorRow]] = {
    # The request is wrong.
    "invalid_request": ErrorRow(400, "INVALID_ARGUMENT"),
    "unknown_parameter": ErrorRow(400, "INVALID_ARGUMENT"),
    "missing_required_parameter": ErrorRow(400, "INVALID_ARGUMENT"),
    "unknown_type": ErrorRow(400, "UNIMPLEMENTED"),
    "unsupported_parameter": ErrorRow(400, "INVALID_ARGUMENT"),
    "empty_prompt": ErrorRow(400, "INVALID_ARGUMENT"),
    "context_length_exceeded": ErrorRow(400, "INVALID_ARGUMENT"),
    "content_filter": ErrorRow(400, "FAILED_PRECONDITION"),
    "content_too_large": ErrorRow(413, "RESOURCE_EXHAUSTED"),
    "model_not_found": ErrorRow(404, "NOT_FOUND"),
    "session_not_found": ErrorRow(404, "NOT_FOUND"),
    "item_not_found": ErrorRow(404, "NOT_FOUND"),
    "response_not_found": ErrorRow(404, "NOT_FOUND"),
    "replica_not_found": ErrorRow(404, "NOT_FOUND"),
    "call_not_found": ErrorRow(404, "NOT_FOUND"),
    "key_not_found": ErrorRow(404, "NOT_FOUND"),
    "review_not_found": ErrorRow(404, "NOT_FOUND"),
    "not_found": ErrorRow(404, "NOT_FOUND"),
    "method_not_allowed": ErrorRow(405, "UNIMPLEMENTED"),
    "session_deleted": ErrorRow(410, "NOT_FOUND"),
    "too_large": ErrorRow(413, "RESOURCE_EXHAUSTED"),
    # True of the request, given what is stored.
    "idempotency_conflict": ErrorRow(409, "ALREADY_EXISTS"),
    "session_exists": ErrorRow(409, "ALREADY_EXISTS"),
    "session_full": ErrorRow(409, "FAILED_PRECONDITION"),
    "session_quarantined": ErrorRow(409, "FAILED_PRECONDITION"),
    "call_answered": ErrorRow(409, "ALREADY_EXISTS"),
    "response_in_progress": ErrorRow(409, "ABORTED"),
    "tools_pending": ErrorRow(409, "ABORTED"),
    "not_withheld": ErrorRow(409, "FAILED_PRECONDITION"),
    "appealed_already": ErrorRow(409, "ALREADY_EXISTS"),
    "review_claimed": ErrorRow(409, "ABORTED"),
    "review_not_claimed": ErrorRow(409, "FAILED_PRECONDITION"),
    "review_decided": ErrorRow(409, "FAILED_PRECONDITION"),
    "session_stays": ErrorRow(409, "ABORTED"),
    # Who.
    "unauthorized": ErrorRow(401, "UNAUTHENTICATED", UNAUTHORIZED),
    "token_expired": ErrorRow(401, "UNAUTHENTICATED", TOKEN_EXPIRED),
    "forbidden": ErrorRow(403, "PERMISSION_DENIED", FORBIDDEN),
    # How much.
    "rate_limited": ErrorRow(429, "RESOURCE_EXHAUSTED"),
    "quota_exceeded": ErrorRow(429, "RESOURCE_EXHAUSTED"),
    "limits_unavailable": ErrorRow(503, "UNAVAILABLE"),
    "too_many_subscriptions": ErrorRow(429, "RESOURCE_EXHAUSTED"),
    "queue_full": ErrorRow(503, "RESOURCE_EXHAUSTED"),
    "overloaded": ErrorRow(503, "UNAVAILABLE", TRY_LATER),
    "draining": ErrorRow(503, "UNAVAILABLE", RESTART),
    # What we need is away, or the fault is ours.
    "journal_unavailable": ErrorRow(503, "UNAVAILABLE", TRY_LATER),
    "directory_unavailable": ErrorRow(503, "UNAVAILABLE"),
    "engine_unavailable": ErrorRow(503, "UNAVAILABLE"),
    "outcome_unknown": ErrorRow(503, "UNAVAILABLE"),
    "fenced": ErrorRow(503, "UNAVAILABLE"),
    "tool_call_invalid": ErrorRow(500, "INTERNAL"),
    "internal_error": ErrorRow(500, "INTERNAL", INTERNAL),
    # The connection itself.
    "bad_frame": ErrorRow(400, "INVALID_ARGUMENT", BAD_FRAME),
    "hello_expected": ErrorRow(400, "FAILED_PRECONDITION", BAD_FRAME),
    "hello_repeated": ErrorRow(400, "FAILED_PRECONDITION", BAD_FRAME),
    "hello_timeout": ErrorRow(408, "DEADLINE_EXCEEDED", BAD_FRAME),
    "request_timeout": ErrorRow(408, "DEADLINE_EXCEEDED"),
    "slow_reader": ErrorRow(408, "RESOURCE_EXHAUSTED", SLOW_READER),
    "heartbeat_lost": ErrorRow(408, "UNAVAILABLE", HEARTBEAT),
}

INNER: Final[dict[str, str]] = {
    # Codes of our own, by the public code that a client sees.
    "append_too_large": "too_large",
    "body_unreadable": "internal_error",
    "directory_closed": "directory_unavailable",
    "directory_forbids": "directory_unavailable",
    "directory_full": "directory_unavailable",
    "directory_outcome_unknown": "directory_unavailable",
    "directory_script_failed": "directory_unavailable",
    "erasure_not_found": "not_found",
    "engine_failed": "engine_unavailable",
    "engine_lost": "engine_unavailable",
    "engine_refused": "engine_unavailable",
    "internal": "internal_error",
    "invalid_format": "invalid_request",
    "invalid_logit_bias": "invalid_request",
    "invalid_schema": "invalid_request",
    "invalid_text": "invalid_request",
    "journal_away": "journal_unavailable",
    "journal_broken": "journal_unavailable",
    "journal_closed": "journal_unavailable",
    "journal_damaged": "journal_unavailable",
    "journal_disk_full": "journal_unavailable",
    "journal_hole": "internal_error",
    "journal_outcome_unknown": "outcome_unknown",
    "journal_overloaded": "overloaded",
    "journal_read_only": "journal_unavailable",
    "journal_refused": "journal_unavailable",
    "journal_slow": "journal_unavailable",
    "journal_taken": "journal_unavailable",
    "audit_not_kept": "journal_unavailable",
    "keys_unavailable": "journal_unavailable",
    "lease_missing": "fenced",
    "limits_outcome_unknown": "limits_unavailable",
    "mailbox_full": "overloaded",
    "model_not_loaded": "engine_unavailable",
    "no_desk": "engine_unavailable",
    "no_replica": "engine_unavailable",
    "quarantined": "session_quarantined",
    "recovery_incompatible": "unsupported_parameter",
    "reviews_not_kept": "journal_unavailable",
    "usage_not_kept": "journal_unavailable",
    "usage_stream_away": "journal_unavailable",
    "replica_replaced": "fenced",
    "replica_unreachable": "fenced",
    "session_moving": "fenced",
    "session_unavailable": "fenced",
    "shutting_down": "draining",
    "tokenizer_failed": "internal_error",
}

STARTUP: Final = frozenset(
    {
        "address_unavailable",
        "bad_brownout_model",
        "bad_chat_template",
        "bad_directory_url",
        "bad_kv_folder",
        "bad_master_key",
        "bad_model_file",
        "directory_unsuitable",
        "engine_not_installed",
        "invalid_setting",
        "journal_folder_locked",
        "journal_folder_unusable",
        "journal_foreign",
        "journal_newer",
        "journal_sqlite_old",
        "journal_unusable",
        "replica_differs",
        "unknown_journal",
    }
)
"""Codes that only stop a server from starting; no client ever meets them."""


def public_code(code: str) -> str:
    """The code that clients see. One that is in no table is our bug; at run time it is an internal error."""
    if code in CODES:
        return code
    return INNER.get(code, "internal_error")


def row(code: str) -> ErrorRow:
    return CODES[public_code(code)]


def public(error: SessileError) -> dict[str, Any]:
    """The `error` object as clients see it; a code without a row takes its message with it."""
    body = error.public()
    body["code"] = public_code(error.code)
    if error.code not in CODES and error.code not in INNER:
        body["message"] = "The server failed to carry this out."
    return body
