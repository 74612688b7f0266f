"""What every route, command and method needs, and whose things it touches. A new one without an entry fails the test.

`needs` is a scope, or "administrator", "operator", "reviewer", "anyone" (with any good key), or None: open to all.
`about` is what the request names of somebody's: then it must be, for others, as if that did not exist. Without it a
request is the asker's own affair: others may make it, and see nothing of the victim's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from sessions.model import commands as cm
from sessions.model.types import CallId, Scope, SessionId
from tests.support.doors.push_service import AUTH, base64url, vapid_key
from transport.grpc_api import sessile_pb2 as pb
from transport.protocol.frames import (
    Ack,
    ClientFrame,
    Hello,
    Ping,
    Pong,
    SessionGet,
    SessionList,
    SessionSearch,
    Subscribe,
    Unsubscribe,
)

Needs = Scope | Literal["administrator", "operator", "reviewer", "anyone"] | None
About = Literal["session", "response", "item", "key", "review", "tenant"] | None


class Names(NamedTuple):
    """What a request names: the victim's things, or ones that do not exist."""

    session: str
    response: str
    item: str
    key_id: str
    review: str


class Http(NamedTuple):
    method: str
    path: str  # as the route table has it
    needs: Needs
    about: About = None
    body: Callable[[Names], Mapping[str, Any]] | None = None
    query: Mapping[str, str] = {}
    custody: bool = False  # an operator of another tenant needs `break_glass` for it, and a reason

    @property
    def name(self) -> str:
        query = "?" + "&".join(self.query) if self.query else ""
        return f"{self.method} {self.path}{query}{'' if self.about is None else f' of a {self.about}'}"

    def url(self, names: Names) -> str:
        path = (
            self.path.replace("{tenant}", "acme")
            .replace("{user:path}", "zoe")  # nobody whom the matrix needs
            .replace("{replica}", "local")
            .replace("{session}", names.session)
            .replace("{conversation}", names.session)
        )
        path = path.replace("{response_id}", names.response).replace("{item_id}", names.item)
        path = path.replace("{review_id}", names.review).replace("{share_id}", "shr_none").replace("{token}", "t" * 43)
        path = path.replace("{memory_id}", "mem_none").replace("{subscription}", "push_none")
        path = path.replace("{store_id}", "vs_none").replace("{file_id}", "file-none").replace("{batch_id}", "b_none")
        path = path.replace("{name}", "weather").replace("{server}", "town")
        return path.replace("{key_id}", names.key_id).replace("{name:path}", "").replace("{model:path}", "simulated")


def fixed(**body: Any) -> Callable[[Names], Mapping[str, Any]]:
    return lambda _: body


ASKS = {"type": "session.get", "id": "01K80000000000000000000GET"}
DEVICE = {
    "endpoint": "https://push.example/a-strangers",
    "keys": {"p256dh": vapid_key().public, "auth": base64url(AUTH)},
}
INPUT = {"model": "simulated", "input": "hello"}
SAID = [{"role": "user", "content": "hello"}]
ITEMS = [{"type": "message", "role": "user", "content": "hello"}]

HTTP: tuple[Http, ...] = (
    *(Http(method, "/openapi.json", None) for method in ("GET", "HEAD")),
    *(Http(method, "/{name:path}", None) for method in ("GET", "HEAD")),
    Http("GET", "/healthz", None),
    Http("GET", "/health", None),
    Http("GET", "/readyz", None),
    Http("GET", "/v1/ws", None),
    Http("POST", "/v1/ws/tickets", "anyone"),
    Http("GET", "/v1/me", "anyone"),
    Http("GET", "/metrics", "operator"),
    # operators
    Http("GET", "/v1/operator/overview", "operator"),
    Http("GET", "/v1/operator/sessions", "operator"),
    Http("GET", "/v1/operator/series", "operator"),
    Http("POST", "/v1/operator/replicas/{replica}/drain", "operator"),
    Http("POST", "/v1/operator/replicas/{replica}/undrain", "operator"),
    Http("POST", "/v1/operator/sessions/{tenant}/{session}/handoff", "operator", body=fixed(replica="local")),
    # keys
    Http("POST", "/v1/keys", "administrator", body=fixed(role="user")),
    Http("POST", "/v1/keys", "administrator", "tenant", body=fixed(role="user", tenant="acme"), custody=True),
    Http("GET", "/v1/keys", "administrator"),
    Http("GET", "/v1/keys", "administrator", "tenant", query={"tenant": "acme"}),
    Http("GET", "/v1/keys/{key_id}", "administrator", "key"),
    Http("DELETE", "/v1/keys/{key_id}", "administrator", "key"),
    # usage
    Http("GET", "/v1/usage", "usage"),
    Http("GET", "/v1/usage", "usage", "tenant", query={"tenant": "acme"}),
    Http("GET", "/v1/usage/responses", "usage"),
    Http("GET", "/v1/usage/responses", "usage", "tenant", query={"tenant": "acme"}),
    # reviews
    Http("GET", "/v1/reviews", "reviewer"),
    Http("GET", "/v1/reviews", "reviewer", "tenant", query={"tenant": "acme"}),
    Http("GET", "/v1/reviews/{review_id}", "reviewer", "review"),
    Http("POST", "/v1/reviews/{review_id}/claim", "reviewer", "review"),
    Http("POST", "/v1/reviews/{review_id}/decide", "reviewer", "review", body=fixed(outcome="upheld")),
    Http("POST", "/v1/sessions/{session}/responses/{response_id}/appeal", "chat", "session", body=fixed(note="x")),
    Http("POST", "/v1/sessions/{session}/messages/appeal", "chat", "session", body=fixed(content="x")),
    Http("POST", "/v1/sessions/{session}/responses/{response_id}/feedback", "chat", "session", body=fixed(rating="up")),
    # keys of the journal
    Http("GET", "/v1/operator/encryption", "operator"),
    Http("POST", "/v1/operator/encryption", "operator", body=fixed(action="resume")),
    # tools of MCP servers
    Http("GET", "/v1/tools", "administrator"),
    Http("GET", "/v1/tools", "administrator", "tenant", query={"tenant": "acme"}),
    Http("POST", "/v1/tools/agreements", "administrator", body=fixed(server="town", tools={"town__look": "0" * 64})),
    *(Http(method, "/v1/tools/{name}", "administrator") for method in ("GET", "DELETE")),
    Http("PUT", "/v1/tools/{name}", "administrator", body=fixed(url="https://tool.example/")),
    *(Http(method, "/v1/tool_servers/{server}", "administrator") for method in ("GET", "DELETE")),
    Http("PUT", "/v1/tool_servers/{server}", "administrator", body=fixed(url="https://tool.example/")),
    # tokens that end before their time
    Http("GET", "/v1/operator/revocations", "operator"),
    Http("POST", "/v1/operator/revocations", "operator", body=fixed(subject="zoe")),
    # the audit log
    Http("GET", "/v1/audit", "administrator"),
    Http("GET", "/v1/audit", "administrator", "tenant", query={"tenant": "acme"}),
    Http("GET", "/v1/audit", "operator", query={"tenant": ""}),
    Http("GET", "/v1/audit/tenants", "operator"),
    Http("GET", "/v1/audit/verify", "administrator"),
    Http("GET", "/v1/audit/verify", "administrator", "tenant", query={"tenant": "acme"}),
    # limits
    Http("GET", "/v1/limits", "administrator"),
    Http("GET", "/v1/limits", "administrator", "tenant", query={"tenant": "acme"}),
    # end users
    Http("GET", "/v1/users/{user:path}/export", "administrator"),
    Http("GET", "/v1/users/{user:path}/export", "administrator", "tenant", query={"tenant": "acme"}, custody=True),
    Http("POST", "/v1/users/{user:path}/erase", "administrator"),
    Http("POST", "/v1/users/{user:path}/erase", "administrator", "tenant", query={"tenant": "acme"}, custody=True),
    Http("GET", "/v1/users/{user:path}/erase", "administrator"),
    Http("GET", "/v1/users/{user:path}/erase", "administrator", "tenant", query={"tenant": "acme"}),
    # OpenAI's
    Http("GET", "/v1/models", "read"),
    Http("GET", "/v1/models/{model:path}", "read"),
    Http("POST", "/v1/chat/completions", "chat", body=fixed(model="simulated", messages=SAID)),
    Http("POST", "/v1/messages", "chat", body=fixed(model="simulated", messages=SAID, max_tokens=4)),
    Http("POST", "/v1/messages/count_tokens", "chat", body=fixed(model="simulated", messages=SAID)),
    Http("POST", "/v1/completions", "chat", body=fixed(model="simulated", prompt="hello")),
    Http("POST", "/v1/moderations", "chat", body=fixed(input="hello")),
    Http("POST", "/tokenize", "chat", body=fixed(prompt="hello")),
    Http("POST", "/detokenize", "chat", body=fixed(tokens=[104, 105])),
    Http("GET", "/tokenizer_info", "chat"),
    Http("POST", "/v1/responses/input_tokens", "chat", body=fixed(**INPUT)),
    Http(
        "POST",
        "/v1/responses/input_tokens",
        "chat",
        "response",
        body=lambda n: {**INPUT, "previous_response_id": n.response},
    ),
    Http("POST", "/v1/responses/input_tokens", "chat", "session", body=lambda n: {**INPUT, "conversation": n.session}),
    Http("POST", "/v1/responses", "chat", body=fixed(**INPUT)),
    Http("POST", "/v1/responses", "chat", "response", body=lambda n: {**INPUT, "previous_response_id": n.response}),
    Http("POST", "/v1/responses", "chat", "session", body=lambda n: {**INPUT, "conversation": n.session}),
    Http("POST", "/v1/responses/compact", "chat", body=fixed(**INPUT)),
    Http("POST", "/v1/responses/compact", "chat", "response", body=lambda n: {"previous_response_id": n.response}),
    Http("GET", "/v1/responses/{response_id}", "read", "response"),
    Http("GET", "/v1/responses/{response_id}", "read", "response", query={"stream": "true"}),
    Http("GET", "/v1/responses/{response_id}/input_items", "read", "response"),
    Http("POST", "/v1/responses/{response_id}/cancel", "chat", "response"),
    Http("POST", "/v1/responses/{response_id}/steer", "chat", "response", body=fixed(input="x")),
    Http("DELETE", "/v1/responses/{response_id}", "chat", "response"),
    Http("POST", "/v1/conversations", "chat", body=fixed(items=ITEMS)),
    Http("GET", "/v1/conversations/{conversation}", "read", "session"),
    Http("GET", "/v1/conversations/{conversation}/items", "read", "session"),
    Http("GET", "/v1/conversations/{conversation}/items/{item_id}", "read", "session"),
    Http("DELETE", "/v1/conversations/{conversation}/items/{item_id}", "chat", "session"),
    Http("POST", "/v1/conversations/{conversation}/items", "chat", "session", body=fixed(items=ITEMS)),
    Http("POST", "/v1/conversations/{conversation}", "chat", "session", body=fixed(metadata={"a": "b"})),
    Http("DELETE", "/v1/conversations/{conversation}", "chat", "session"),
    # sessions
    Http("GET", "/v1/sessions", "read"),
    Http("GET", "/v1/sessions/search", "read", query={"q": "canary"}),
    Http("GET", "/v1/sessions/{session}", "read", "session"),
    Http("GET", "/v1/sessions/{session}/export", "read", "session"),
    Http("GET", "/v1/sessions/{session}/export", "read", "session", query={"format": "markdown"}),
    Http("GET", "/v1/sessions/{session}/events", "read", "session"),
    Http("GET", "/v1/sessions/{session}/events", "read", "session", query={"after": "0"}),
    Http("GET", "/v1/sessions/{session}/events", "read", "session", query={"after": "0", "wait_ms": "0"}),
    Http("POST", "/v1/commands", "read", body=fixed(type="session.list", id="01K8000000000000000000LIST")),
    Http("POST", "/v1/commands", "read", "session", body=lambda n: {**ASKS, "session": n.session}),
    Http("POST", "/v1/sessions/{session}/shares", "chat", "session", body=fixed()),
    Http("GET", "/v1/sessions/{session}/shares", "chat", "session"),
    Http("DELETE", "/v1/sessions/{session}/shares/{share_id}", "chat", "session"),
    Http("GET", "/v1/shares/{token}", None),
    Http("POST", "/v1/embeddings", "chat", body=fixed(input="hello")),
    *(
        Http("POST", path, "chat", body=fixed(query="hello", documents=["hello"]))
        for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    ),
    Http("POST", "/v1/vector_stores", "chat", body=fixed()),
    Http("GET", "/v1/vector_stores", "read"),
    Http("GET", "/v1/vector_stores/{store_id}", "read"),
    Http("POST", "/v1/vector_stores/{store_id}", "chat", body=fixed(name="mine")),
    Http("DELETE", "/v1/vector_stores/{store_id}", "chat"),
    Http("POST", "/v1/vector_stores/{store_id}/search", "chat", body=fixed(query="hello")),
    Http("POST", "/v1/vector_stores/{store_id}/files", "chat", body=fixed(text="hello")),
    Http("GET", "/v1/vector_stores/{store_id}/files", "read"),
    Http("GET", "/v1/vector_stores/{store_id}/files/{file_id}", "read"),
    Http("GET", "/v1/vector_stores/{store_id}/files/{file_id}/content", "read"),
    Http("POST", "/v1/vector_stores/{store_id}/files/{file_id}", "chat", body=fixed(attributes={})),
    Http("DELETE", "/v1/vector_stores/{store_id}/files/{file_id}", "chat"),
    Http("POST", "/v1/vector_stores/{store_id}/file_batches", "chat", body=fixed(files=[{"text": "hello"}])),
    Http("GET", "/v1/vector_stores/{store_id}/file_batches/{batch_id}", "read"),
    Http("POST", "/v1/vector_stores/{store_id}/file_batches/{batch_id}/cancel", "chat"),
    Http("GET", "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files", "read"),
    Http("GET", "/v1/push", "read"),
    Http("GET", "/v1/push/subscriptions", "read"),
    Http("POST", "/v1/push/subscriptions", "chat", body=fixed(**DEVICE)),
    Http("DELETE", "/v1/push/subscriptions/{subscription}", "chat"),
    Http("GET", "/v1/files", "read"),
    Http("POST", "/v1/files", "chat", body=fixed(file="a stranger's")),
    Http("GET", "/v1/files/{file_id}", "read"),
    Http("GET", "/v1/files/{file_id}/content", "read"),
    Http("GET", "/v1/containers/{container_id}/files/{file_id}/content", "read"),
    Http("DELETE", "/v1/files/{file_id}", "chat"),
    Http("GET", "/v1/memories", "read"),
    Http("POST", "/v1/memories", "chat", body=fixed(text="a stranger's")),
    Http("PATCH", "/v1/memories/{memory_id}", "chat", body=fixed(text="a stranger's")),
    Http("DELETE", "/v1/memories/{memory_id}", "chat"),
    Http("PATCH", "/v1/sessions/{session}", "chat", "session", body=fixed(title="mine")),
    Http("DELETE", "/v1/sessions/{session}", "chat", "session"),
)


# -- WebSocket --------------------------------------------------------------------------------------------------------


class Command(NamedTuple):
    """`make` gives the frame; `answer` is what tells that it was carried out or refused."""

    kind: type[msgspec.Struct]
    needs: Needs
    about: About
    make: Callable[[Any, Any], msgspec.Struct]

    @property
    def name(self) -> str:
        return str(self.kind.__struct_config__.tag)


def _session(names: Names) -> SessionId:
    return SessionId(names.session)


COMMANDS: tuple[Command, ...] = (
    Command(SessionGet, "read", "session", lambda n, i: SessionGet(id=i, session=_session(n))),
    Command(SessionList, "read", None, lambda n, i: SessionList(id=i)),
    Command(SessionSearch, "read", None, lambda n, i: SessionSearch(id=i, q="canary")),
    Command(Subscribe, "read", "session", lambda n, i: Subscribe(id=i, session=_session(n))),
    Command(cm.SessionCreate, "chat", None, lambda n, i: cm.SessionCreate(id=i, title="x")),
    Command(cm.MessageCreate, "chat", "session", lambda n, i: cm.MessageCreate(id=i, session=_session(n), content="x")),
    Command(
        cm.MessageEdit,
        "chat",
        "session",
        lambda n, i: cm.MessageEdit(id=i, session=_session(n), item_id=n.item, content="x"),
    ),
    Command(cm.ResponseCreate, "chat", "session", lambda n, i: cm.ResponseCreate(id=i, session=_session(n))),
    Command(
        cm.ResponseCancel,
        "chat",
        "session",
        lambda n, i: cm.ResponseCancel(id=i, session=_session(n), response_id=n.response),
    ),
    Command(
        cm.ResponseSteer,
        "chat",
        "session",
        lambda n, i: cm.ResponseSteer(id=i, session=_session(n), response_id=n.response, content="x"),
    ),
    Command(
        cm.ToolOutput,
        "chat",
        "session",
        lambda n, i: cm.ToolOutput(id=i, session=_session(n), call_id=CallId("call_1"), output="x"),
    ),
    Command(cm.SessionUpdate, "chat", "session", lambda n, i: cm.SessionUpdate(id=i, session=_session(n), title="x")),
    Command(cm.SessionWarm, "chat", "session", lambda n, i: cm.SessionWarm(id=i, session=_session(n))),
    Command(
        cm.ReviewAppeal,
        "chat",
        "session",
        lambda n, i: cm.ReviewAppeal(id=i, session=_session(n), response_id=n.response),
    ),
    Command(
        cm.FeedbackSet,
        "chat",
        "session",
        lambda n, i: cm.FeedbackSet(id=i, session=_session(n), response_id=n.response, rating="down", reason="x"),
    ),
    Command(cm.SessionCompact, "chat", "session", lambda n, i: cm.SessionCompact(id=i, session=_session(n))),
    Command(cm.CompactionUndo, "chat", "session", lambda n, i: cm.CompactionUndo(id=i, session=_session(n))),
    Command(cm.ItemPin, "chat", "session", lambda n, i: cm.ItemPin(id=i, session=_session(n), item_id=n.item)),
    Command(
        cm.ToolApprove, "chat", "session", lambda n, i: cm.ToolApprove(id=i, session=_session(n), call_id=CallId("c"))
    ),
    Command(cm.SessionDelete, "chat", "session", lambda n, i: cm.SessionDelete(id=i, session=_session(n))),
)
NOTHING_TO_ALLOW: tuple[type[msgspec.Struct], ...] = (Hello, Ack, Ping, Pong, Unsubscribe)
"""Frames that show and change nothing of a session: they open the connection (every attempt does, and one more kind of
attempt resumes in it), or speak of what the connection itself reads."""
FRAMES = frozenset(get_args(ClientFrame))


# -- gRPC -------------------------------------------------------------------------------------------------------------


class Method(NamedTuple):
    method: str
    needs: Needs
    about: About
    make: Callable[[Names], Any]
    streams: Literal["", "replies", "both"] = ""

    @property
    def name(self) -> str:
        return self.method


METHODS: tuple[Method, ...] = (
    Method("Create", "chat", None, lambda n: pb.SessionCreate(title="x")),
    Method("Get", "read", "session", lambda n: pb.GetRequest(session=n.session)),
    Method("List", "read", None, lambda n: pb.ListRequest()),
    Method("History", "read", "session", lambda n: pb.HistoryRequest(session=n.session), "replies"),
    Method("Converse", "read", "session", lambda n: pb.ConverseRequest(open=pb.Open(session=n.session)), "both"),
    Method("Send", "chat", "session", lambda n: pb.MessageCreate(session=n.session, content="x")),
    Method("Edit", "chat", "session", lambda n: pb.MessageEdit(session=n.session, item_id=n.item, content="x")),
    Method("Respond", "chat", "session", lambda n: pb.ResponseCreate(session=n.session)),
    Method("Cancel", "chat", "session", lambda n: pb.ResponseCancel(session=n.session, response_id=n.response)),
    Method(
        "Steer", "chat", "session", lambda n: pb.ResponseSteer(session=n.session, response_id=n.response, content="x")
    ),
    Method(
        "AnswerTool",
        "chat",
        "session",
        lambda n: pb.ToolOutput(session=n.session, call_id=CallId("call_1"), output="x"),
    ),
    Method("Update", "chat", "session", lambda n: pb.SessionUpdate(session=n.session, title="x")),
    Method("Warm", "chat", "session", lambda n: pb.SessionWarm(session=n.session)),
    Method("Appeal", "chat", "session", lambda n: pb.ReviewAppeal(session=n.session, response_id=n.response)),
    Method("Rate", "chat", "session", lambda n: pb.FeedbackSet(session=n.session, response_id=n.response, rating="up")),
    Method("Compact", "chat", "session", lambda n: pb.SessionCompact(session=n.session)),
    Method("UndoCompaction", "chat", "session", lambda n: pb.CompactionUndo(session=n.session)),
    Method("Pin", "chat", "session", lambda n: pb.ItemPin(session=n.session, item_id=n.item)),
    Method("Approve", "chat", "session", lambda n: pb.ToolApprove(session=n.session, call_id="c")),
    Method("Delete", "chat", "session", lambda n: pb.SessionDelete(session=n.session)),
)

Entry = Http | Command | Method
