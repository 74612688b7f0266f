"""The vocabulary: keys, audit rows, authorities, requests, reviews, revocations, files, schemas."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.model import commands as cm
from sessions.model.api_keys import ApiKeyRequest, digest_of, make_api_key, parse_key, secret_matches
from sessions.model.audit import Audited
from sessions.model.authorization import (
    acting_for,
    allows,
    demand_administrator,
    demand_operator,
    demand_visible,
    may_grant,
    may_see,
    operates,
    tenant_for,
)
from sessions.model.errors import BadInput, Conflict, Forbidden, NotFound
from sessions.model.generation import cache_scope_of
from sessions.model.journal_types import CommandRecord, Due
from sessions.model.knowledge.files import FILENAME_MAX, may_see_file, safe_filename, safe_media_type
from sessions.model.memories import HEADING, owner_of, with_memories
from sessions.model.request import Request, recorded_answer, request_of
from sessions.model.reviews import appealable
from sessions.model.revocations import KEPT_MS, make_revocation, merged, places_of, revocation_audit
from sessions.model.types import (
    LOCAL_PRINCIPAL,
    SCOPES,
    Authority,
    CommandId,
    Json,
    Principal,
    Scope,
    SessionId,
    SessionKey,
    TenantId,
    TokenRef,
    UnixMs,
    derived_session_id,
    pack_tokens,
    unpack_tokens,
)
from sessions.model.verdicts import Finding, quoted, without_text
from tests.support.stores.file_rows import a_file

NOW = UnixMs(1_750_000_000_000)


@given(st.binary(min_size=40, max_size=40), st.binary(min_size=40, max_size=40))
def test_a_key_opens_itself_and_nothing_else(one: bytes, two: bytes) -> None:
    key, written = make_api_key(ApiKeyRequest(tenant="acme"), one, now=NOW)
    name, secret = parse_key(written) or ("", "")
    assert written == f"sk-sessile-{name}-{secret}" and name == key.id
    assert secret_matches(key, secret) and key.digest == digest_of(secret)
    other, _ = make_api_key(ApiKeyRequest(tenant="acme"), two, now=NOW)
    assert secret_matches(other, secret) == (one[8:] == two[8:])
    assert not secret_matches(None, secret)


@given(st.text(max_size=100))
def test_what_is_not_written_like_a_key_is_none(text: str) -> None:
    assert parse_key(text) is None


def test_near_misses_are_none() -> None:
    _, written = make_api_key(ApiKeyRequest(tenant="acme"), bytes(40), now=NOW)
    assert parse_key(written) is not None
    for wrong in (written + "\n", written + "a", written[:-1], written.upper(), " " + written, written[3:]):
        assert parse_key(wrong) is None


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (ApiKeyRequest(tenant=""), "tenant"),
        (ApiKeyRequest(tenant="a\nb"), "tenant"),
        (ApiKeyRequest(tenant="a" * 129), "tenant"),
        (ApiKeyRequest(tenant="acme", user=""), "user"),
        (ApiKeyRequest(tenant="acme", role="service", user="ana"), "user"),
        (ApiKeyRequest(tenant="acme", name="\x1b[2J"), "name"),
        (ApiKeyRequest(tenant="acme", expires_at=NOW), "expires_at"),
        (ApiKeyRequest(tenant="acme", scopes=()), "scopes"),
        (ApiKeyRequest(tenant="acme", scopes=("admin",)), "scopes"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wanted: ApiKeyRequest, param: str) -> None:
    with pytest.raises(BadInput) as refused:
        make_api_key(wanted, bytes(40), now=NOW)
    assert refused.value.param == param


FOUND = Finding(category="c", action="flag", start=0, end=3, text="gun")


def test_what_is_written_down_does_not_print_its_texts() -> None:
    assert "gun" not in repr(Audited(action="verdict", at=UnixMs(1), by=LOCAL_PRINCIPAL, findings=(FOUND,)))


ACME = TenantId("acme")
KEY = SessionKey(ACME, SessionId("s1"))


def principal(*scopes: Scope, role: Authority = "user", user: str | None = None, tenant: TenantId = ACME) -> Principal:
    return Principal(tenant=tenant, key_id="k", user=user, role=role, scopes=scopes)


def test_a_scope_allows_itself_and_chat_also_reading() -> None:
    allowed = {have: {want for want in SCOPES if allows(principal(have), want)} for have in SCOPES}
    assert allowed == {scope: {scope} for scope in SCOPES} | {"chat": {"chat", "read"}}
    assert not any(allows(principal(), want) for want in SCOPES)


@pytest.mark.parametrize("role", get_args(Authority))
@pytest.mark.parametrize("scope", SCOPES)
def test_operators_routes_are_for_operators_who_administer(role: Authority, scope: Scope) -> None:
    who = principal(scope, role=role)
    assert operates(who) == ((role, scope) == ("operator", "admin"))
    if operates(who):
        demand_operator(who)
    else:
        with pytest.raises(Forbidden):
            demand_operator(who)


@pytest.mark.parametrize("role", get_args(Authority))
def test_a_tenants_affairs_are_for_its_administrators(role: Authority) -> None:
    if role == "user":
        with pytest.raises(Forbidden):
            demand_administrator(principal(*SCOPES, role=role))
    else:
        assert demand_administrator(principal("admin", role=role)) == ACME
    with pytest.raises(Forbidden):
        demand_administrator(principal("chat", "read", "usage", "review", role=role))
    assert may_grant(principal("admin", role=role), "service")
    assert may_grant(principal("admin", role=role), "operator") == (role == "operator")


def test_a_service_speaks_for_an_end_user_and_is_no_more_than_that() -> None:
    service = principal(*SCOPES, role="service")
    assert acting_for(service, None) == service
    ana = acting_for(service, "ana")
    assert (ana.role, ana.user, ana.key_id, ana.tenant) == ("user", "ana", "k", ACME)
    assert "admin" not in ana.scopes and ana.id != service.id
    assert may_see(ana, KEY, "ana") and not may_see(ana, KEY, "ben") and not may_see(ana, KEY, None)
    with pytest.raises(BadInput):
        acting_for(service, "")
    for role in ("user", "operator"):
        with pytest.raises(Forbidden):
            acting_for(principal(*SCOPES, role=role, user="ben"), "ana")


def test_another_tenants_affairs_are_the_operators() -> None:
    assert tenant_for(principal("admin", role="service"), None) == ACME
    assert tenant_for(principal("admin", role="service"), "acme") == ACME
    with pytest.raises(Forbidden):
        tenant_for(principal("admin", role="service"), "other")
    assert tenant_for(principal("admin", role="operator"), "other") == "other"


def test_a_session_is_its_tenants_and_its_users() -> None:
    ana, ben = (principal("chat", user=user) for user in ("ana", "ben"))
    service = principal("chat", role="service")
    assert may_see(ana, KEY, "ana") and not may_see(ben, KEY, "ana")
    assert may_see(service, KEY, "ana") and may_see(service, KEY, None)
    assert not may_see(ana, KEY, None)
    for role in get_args(Authority):
        assert not may_see(principal(*SCOPES, role=role, user="ana", tenant=TenantId("other")), KEY, "ana")


def test_reading_needs_a_scope_before_anything_is_said_of_the_session() -> None:
    with pytest.raises(Forbidden):
        demand_visible(principal("usage", user="ben"), KEY, "ana")
    with pytest.raises(NotFound, match="There is no session 's1'"):
        demand_visible(principal("read", user="ben"), KEY, "ana")
    demand_visible(principal("read", user="ana"), KEY, "ana")


def test_principals_of_before_there_were_scopes_are_read_as_what_they_could_do() -> None:
    old = msgspec.msgpack.encode({"tenant": "acme", "key_id": "k", "user": None, "role": "service"})
    read = msgspec.msgpack.decode(old, type=Principal)
    assert read == Principal(tenant=ACME, key_id="k", role="service")
    assert allows(read, "chat") and not allows(read, "admin")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(LOCAL_PRINCIPAL), type=Principal)
    assert again == LOCAL_PRINCIPAL
    assert len(msgspec.msgpack.encode(read)) <= len(old)


STATELESS: dict[str, Json] = {"store": False}


def generation_principal(tenant: str = "t", key: str = "k", user: str | None = None) -> Principal:
    return Principal(tenant=TenantId(tenant), key_id=key, user=user)


def test_the_same_caller_has_the_same_scope_whatever_else_it_requests() -> None:
    scope = cache_scope_of(generation_principal(), STATELESS)
    assert len(scope) == 16
    assert (
        scope == cache_scope_of(generation_principal(), {}) == cache_scope_of(generation_principal(), {"store": True})
    )
    assert scope == cache_scope_of(generation_principal(), {**STATELESS, "temperature": 0.5, "metadata": {"user": "x"}})
    assert cache_scope_of(generation_principal(), {**STATELESS, "user": "a"}) == cache_scope_of(
        generation_principal(), {**STATELESS, "safety_identifier": "a"}
    ), "both names of an end user are one"


def test_no_two_callers_have_one_scope_however_their_names_are_put_together() -> None:
    parts = ["a", "b", "a/b", "a\0b", "", "null"]
    callers = set(itertools.product(parts, parts, [None, *parts], [None, *(part for part in parts if part)]))
    scopes = {
        cache_scope_of(generation_principal(tenant, key, user), STATELESS | ({} if end is None else {"user": end}))
        for tenant, key, user, end in callers
    }
    assert len(scopes) == len(callers)


DUE = Due(deleted_before=UnixMs(30), unlisted_before=UnixMs(20), idle_before=UnixMs(10), user="ana")
SESSION: dict[str, Any] = {"user": "ana", "top": 5, "listed": True, "open": False, "updated_at": 25, "deleted_at": None}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"updated_at": 9}, "idle"),
        ({"updated_at": 10}, None),
        ({"updated_at": 9, "open": True}, None),
        ({"updated_at": 19, "listed": False}, "unlisted"),
        ({"updated_at": 9, "listed": False, "open": True}, None),
        ({"deleted_at": 29}, "deleted"),
        ({"deleted_at": 29, "open": True}, "deleted"),
        ({"deleted_at": 30}, None),
        ({"deleted_at": 30, "updated_at": 9}, "idle"),
        ({"top": 0}, "empty"),
        ({"top": 0, "updated_at": 30}, None),
        ({"user": "bob", "updated_at": 0}, None),
        ({"user": None, "updated_at": 0}, None),
    ],
)
def test_a_session_is_due_for_the_first_reason_that_holds(fields: dict[str, Any], reason: str | None) -> None:
    assert DUE.reason(**{**SESSION, **fields}) == reason


def test_without_a_user_every_users_sessions_are_meant() -> None:
    due = Due(deleted_before=UnixMs(30))
    assert due.reason(**{**SESSION, "user": "bob", "deleted_at": 1}) == "deleted"
    assert due.reason(**{**SESSION, "updated_at": 0}) is None, "idle ones stay"


@pytest.mark.parametrize(
    ("instructions", "memories", "shown"),
    [
        (None, (), None),
        ("Be brief.", (), "Be brief."),
        (None, ("a", "b"), f"{HEADING}\n- a\n- b"),
        ("Be brief.", ("a",), f"Be brief.\n\n{HEADING}\n- a"),
        (None, ("a\n\n- not another one\tb",), f"{HEADING}\n- a - not another one b"),
    ],
)
def test_they_stand_behind_the_instructions_a_line_each(
    instructions: str | None, memories: tuple[str, ...], shown: str | None
) -> None:
    assert with_memories(instructions, memories) == shown


def test_they_are_an_end_users() -> None:
    assert owner_of(Principal(tenant=TenantId("t"), key_id="k", user="ana")) == "ana"
    with pytest.raises(BadInput, match="X-Sessile-User"):
        owner_of(Principal(tenant=TenantId("t"), key_id="k"))


ID = CommandId("c1")


class Records:
    def __init__(self, record: CommandRecord | None) -> None:
        self.record = record
        self.sought: list[tuple[SessionKey, str, CommandId]] = []

    async def find_command(self, key: SessionKey, principal_id: str, command_id: CommandId) -> CommandRecord | None:
        self.sought.append((key, principal_id, command_id))
        return self.record


def message(content: str) -> Request:
    return request_of(LOCAL_PRINCIPAL, cm.MessageCreate(id=ID, session=SessionId("s"), content=content))


def test_a_session_without_a_name_gets_the_same_one_at_every_retry() -> None:
    first, again = (request_of(LOCAL_PRINCIPAL, cm.SessionCreate(id=ID)) for _ in range(2))
    assert first == again and first.key.session == derived_session_id(LOCAL_PRINCIPAL, ID)
    assert request_of(LOCAL_PRINCIPAL, cm.SessionCreate(id=CommandId("c2"))).key != first.key


def test_digests_differ_where_two_commands_ask_for_different_things() -> None:
    assert message("hello").digest == message("hello").digest != message("bye").digest
    ordered, turned = (dict.fromkeys(names, 1) for names in (("a", "b"), ("b", "a")))
    update = cm.SessionUpdate(id=ID, session=SessionId("s"), metadata=ordered)
    assert cm.command_digest(update) == cm.command_digest(msgspec.structs.replace(update, metadata=turned))


async def test_a_repeat_gets_its_recorded_answer_and_another_command_a_conflict() -> None:
    request, answer = message("hello"), cm.Ok(id=ID, offset=3)
    record = CommandRecord(
        principal_id=LOCAL_PRINCIPAL.id, command_id=ID, digest=request.digest, answer=answer, at=UnixMs(1)
    )
    records = Records(record)
    assert await recorded_answer(records, request) == answer
    assert records.sought == [(request.key, LOCAL_PRINCIPAL.id, ID)]
    with pytest.raises(Conflict) as refused:
        await recorded_answer(records, message("bye"))
    assert refused.value.code == "idempotency_conflict"
    assert await recorded_answer(Records(None), request) is None


def finding(category: str = "pii/email", action: Any = "redact", **more: Any) -> Finding:
    return Finding(category=category, action=action, start=0, end=3, review=True, **more)


def test_an_appeal_is_against_the_gravest_thing_and_the_last_of_its_kind() -> None:
    first, last = finding("a"), finding("b")
    assert appealable([first, last, finding(action="flag")]) is last
    assert appealable([finding(action="block"), last]) == finding(action="block")
    assert appealable([finding(action="flag")]) is None


REVOCATIONS_NOW = UnixMs(1000)


def test_a_subject_covers_what_was_issued_until_then() -> None:
    subject = make_revocation("i", subject="ana", token_id=None, at=REVOCATIONS_NOW, expires_at=None)
    assert (subject.kind, subject.name, subject.expires_at) == ("subject", "ana", REVOCATIONS_NOW + KEPT_MS)
    assert subject.covers(TokenRef("i", "ana", "t", REVOCATIONS_NOW)) and subject.covers(TokenRef("i", "ana"))
    assert not subject.covers(TokenRef("i", "ana", "t", UnixMs(1001)))
    assert not subject.covers(TokenRef("j", "ana", "t", REVOCATIONS_NOW)) and not subject.covers(
        TokenRef("i", "ben", "t", REVOCATIONS_NOW)
    )


def test_a_token_is_covered_by_its_id_alone() -> None:
    token = make_revocation("i", subject=None, token_id="t", at=REVOCATIONS_NOW, expires_at=2000, by="boss")
    assert token.covers(TokenRef("i", "ana", "t", UnixMs(1500)))
    assert not token.covers(TokenRef("i", "t", "u", REVOCATIONS_NOW)) and not token.covers(
        TokenRef("i", "ana", "", REVOCATIONS_NOW)
    )
    assert list(places_of(TokenRef("i", "ana", "t"))) == [("i", "subject", "ana"), ("i", "token", "t")]
    assert list(places_of(TokenRef("i", "ana"))) == [("i", "subject", "ana")]
    assert merged(None, token) == token
    shorter = make_revocation("i", subject=None, token_id="t", at=UnixMs(500), expires_at=900)
    assert merged(token, shorter).expires_at == 2000 and merged(token, shorter).at == REVOCATIONS_NOW


@pytest.mark.parametrize(
    ("subject", "token_id", "expires_at"), [(None, None, None), ("a", "b", None), ("a", None, 1000), (None, "b", 1)]
)
def test_what_it_may_not_say(subject: str | None, token_id: str | None, expires_at: int | None) -> None:
    with pytest.raises(BadInput):
        make_revocation("i", subject=subject, token_id=token_id, at=REVOCATIONS_NOW, expires_at=expires_at)


def test_a_subject_is_an_end_user_in_the_audit_log_and_not_in_its_detail() -> None:
    row = revocation_audit(
        make_revocation("i", subject="ana", token_id=None, at=REVOCATIONS_NOW, expires_at=None), None
    )
    assert (row.action, row.user, dict(row.detail)) == ("token.revoked", "ana", {"issuer": "i", "kind": "subject"})
    row = revocation_audit(make_revocation("i", subject=None, token_id="t", at=REVOCATIONS_NOW, expires_at=None), None)
    assert (row.user, row.detail["token"]) == (None, "t")


def test_users_of_two_issuers_have_ids_of_their_own() -> None:
    users = [
        ("jwt:https://idp/a", "x"),
        ("jwt:https://idp", "a/x"),
        ("jwt:https://idp", "a%2Fx"),
        ("jwt:https://idp", "/x"),
        ("jwt:https://idp/", "x"),
    ]
    ids = {msgspec.structs.replace(LOCAL_PRINCIPAL, key_id=key_id, user=user).id for key_id, user in users}
    assert len(ids) == len(users)


def test_tokens_are_four_bytes_each() -> None:
    packed = pack_tokens([1, 2**32 - 1])
    assert packed == b"\x01\0\0\0\xff\xff\xff\xff" and list(unpack_tokens(packed)) == [1, 2**32 - 1]
    with pytest.raises(ValueError, match="multiple"):
        unpack_tokens(packed[:-1])


REDACTED = Finding(category="pii/email", action="redact", start=4, end=7)


def test_texts_are_left_out_of_logs() -> None:
    kept = Finding(category="c", action="flag", start=0, end=1, kept="k", text="t")
    assert without_text((REDACTED, kept)) == (REDACTED, Finding(category="c", action="flag", start=0, end=1))
    assert without_text(()) == ()
    assert "t'" not in repr(kept) and REDACTED.about == "pii"


def test_a_finding_is_quoted_from_where_the_text_begins() -> None:
    assert [each.text for each in quoted((REDACTED,), "0123456789")] == ["456"]
    assert [each.text for each in quoted((REDACTED,), "23456789", start=2)] == ["456"]
    assert quoted((REDACTED,), "56789", start=5) == (REDACTED,), "it began before the text"
    backwards = Finding(category="c", action="flag", start=4, end=2)
    assert quoted((backwards,), "0123456789")[0].text == ""


ACME_FILES, BETA = TenantId("acme"), TenantId("beta")


def test_who_may_see_a_file() -> None:
    mine, nobodys = a_file(b"", blob="b"), a_file(b"", blob="b", user=None)

    def sees(user: str | None, role: str = "user", tenant: TenantId = ACME_FILES) -> tuple[bool, bool]:
        principal = Principal(tenant=tenant, key_id="k", user=user, role=role)  # type: ignore[arg-type]
        return may_see_file(principal, mine), may_see_file(principal, nobodys)

    assert sees("ü") == (True, False) and sees("x") == sees(None) == (False, False)
    assert sees(None, "service") == sees(None, "operator") == (True, True)
    assert sees("ü", tenant=BETA) == sees(None, "service", BETA) == (False, False)


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("a.pdf", "a.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\Über.docx", "Über.docx"),
        ("a\r\nSet-Cookie: x\0.txt", "aSet-Cookie: x.txt"),
        ("exe\u202efdp.txt", "exefdp.txt"),
        ("..", "file"),
        ("", "file"),
        ("/", "file"),
        (" .hidden. ", "hidden"),
    ],
)
def test_names_are_the_last_part_without_signs_of_control(given: str, safe: str) -> None:
    assert safe_filename(given) == safe


def test_long_names_keep_their_ending() -> None:
    short = safe_filename("x" * 999 + ".pdf")
    assert len(short) == FILENAME_MAX and short.endswith("x.pdf")
    assert len(safe_filename("x" * 999)) == len(safe_filename("a." + "x" * 999)) == FILENAME_MAX


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("Text/HTML; charset=utf-8", "text/html"),
        ("application/pdf", "application/pdf"),
        ("text/html\r\nx: y", "application/octet-stream"),
        ("", "application/octet-stream"),
        ("a/b/c", "application/octet-stream"),
    ],
)
def test_media_types(given: str, safe: str) -> None:
    assert safe_media_type(given) == safe


def test_a_response_to_a_client_of_sessions_has_no_scope() -> None:
    assert cache_scope_of(principal("chat"), None) == b""
