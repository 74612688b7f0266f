"""Attacks by who has a key: nothing is without a bound where keys are demanded, and made-up users do not add one up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.moderation import PolicyFilterSet
from sessions.limits import Limits
from sessions.model.types import Principal, TenantId
from testbed.server_process import ServerProcess
from tests.support.doors.assembly import assembled
from transport.auth.authenticator import key_digest
from transport.cli.settings import Settings
from transport.cli.start.config_files import default_limits

CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
LONG = "a b " * 300_000
WIDE = "\U0001f600" * 300_000  # fewer characters than bytes
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "a prompt": ("/v1/responses/input_tokens", {"input": LONG}),
    "instructions": ("/v1/responses/input_tokens", {"input": "x", "instructions": LONG}),
    "a message": ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}),
    "a text": ("/tokenize", {"prompt": WIDE}),
    "a text to judge": ("/v1/moderations", {"input": WIDE}),
}
KEYS = {
    key_digest(f"key-{name}"): Principal(tenant=TenantId("acme"), key_id=name, role="service", scopes=("chat", "read"))
    for name in "ab"
}


async def test_made_up_users_do_not_multiply_what_a_key_may_do(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nrequests_per_minute = 100\nkey_requests_per_minute = 5\nuser.requests_per_minute = 2\n")
    async with (
        assembled(keys=KEYS, limits_file=path) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):

        async def ask(key: str, user: str, **headers: str) -> httpx.Response:
            headers |= {"authorization": f"Bearer {key}", "x-sessile-user": user}
            return await http.post("/v1/chat/completions", json=CHAT, headers=headers)

        first = await ask("key-a", "user 0", **{"idempotency-key": "once"})
        statuses = [first.status_code] + [(await ask("key-a", f"user {number}")).status_code for number in range(1, 8)]
        assert statuses == [200] * 5 + [429] * 3
        refused = await ask("key-a", "somebody else")
        assert refused.json()["error"]["param"] == "key_requests_per_minute"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 12_000
        again = await ask("key-a", "user 0", **{"idempotency-key": "once"})
        assert again.status_code == 200, "what was answered is answered again"
        assert (await ask("key-b", "user 1")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/moderations", {"input": "word " * 40}),
        ("/v1/responses/input_tokens", {"model": "simulated", "input": "word " * 40}),
        ("/tokenize", {"model": "simulated", "prompt": "word " * 40}),
    ],
)
async def test_questions_about_texts_cost_requests_and_tokens(tmp_path: Path, path: str, body: dict[str, str]) -> None:
    policy, limits = tmp_path / "policy.toml", tmp_path / "limits.toml"
    policy.write_text('[policies.default.input]\nphrases = { deny = ["project nightjar"], action = "block" }\n')
    limits.write_text(
        "[default]\nkey_requests_per_minute = 4\nuser.tokens_per_minute = 1000\nuser.concurrent_turns = 1\n"
    )
    long = {name: each * (1 if name == "model" else 40) for name, each in body.items()}
    filters = PolicyFilterSet(str(policy))
    await filters.open()
    async with (
        assembled(keys=KEYS, limits_file=limits, filters=filters) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):
        sent = (body, body, long, long, body, body)  # what another limit refuses hardly counts
        answers = [await http.post(path, json=each, headers={"authorization": "Bearer key-a"}) for each in sent]
    await filters.close()
    statuses = [answer.status_code for answer in answers]
    assert statuses == [200, 200, 429, 429, 200, 429], [answer.text for answer in answers]
    refused = [answer.json()["error"]["param"] for answer in answers if answer.status_code == 429]
    assert refused == ["tokens_per_minute", "tokens_per_minute", "key_requests_per_minute"]
    assert 800 < int(answers[1].headers["x-ratelimit-remaining-tokens"]) < 920


async def test_summaries_are_no_way_around_limits(tmp_path: Path) -> None:
    """`/v1/responses/compact` had the model read and write whatever was in its `input`, as often as one liked."""
    limits = tmp_path / "limits.toml"
    limits.write_text("[default]\nuser.requests_per_minute = 3\nuser.tokens_per_minute = 3000\n")
    async with (
        assembled(keys=KEYS, limits_file=limits) as server,
        httpx.AsyncClient(base_url=server.server.url, timeout=60) as http,
    ):

        async def compact(text: str) -> httpx.Response:
            body, headers = {"model": "simulated", "input": text}, {"authorization": "Bearer key-a"}
            return await http.post("/v1/responses/compact", json=body, headers=headers)

        answers = [await compact(f"Of the sea, {number}.") for number in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429], [answer.text for answer in answers]
    assert answers[-1].json()["error"]["param"] == "requests_per_minute", "three reservations would be too many tokens"


@pytest.mark.parametrize("settings", [Settings(auth="keys"), Settings(keys="keys.toml"), Settings(issuers="i.toml")])
def test_where_keys_are_demanded_everything_has_a_bound(settings: Settings) -> None:
    limits = default_limits(settings)
    assert limits is not None and default_limits(Settings()) is None
    everybody = limits.of(TenantId("whoever"))
    for ceilings in (everybody, everybody.user):
        assert None not in (
            ceilings.requests_per_minute,
            ceilings.tokens_per_minute,
            ceilings.concurrent_turns,
            ceilings.sessions,
        )
    key, tenant = everybody.key_requests_per_minute, everybody.requests_per_minute
    assert key is not None and tenant is not None and key < tenant


def test_a_server_that_demands_keys_says_its_limits(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    digest = key_digest("sk-boss")
    keys.write_text(
        f'[[keys]]\nid = "boss"\ntenant = "acme"\nrole = "service"\nscopes = ["admin"]\nsha256 = "{digest}"\n'
    )
    none = tmp_path / "none.toml"
    none.write_text("")
    for flags, expected in (((), 3_000), (("--limits", str(none)), None)):
        with ServerProcess("--keys", str(keys), "--journal", "memory", "--engine", "sim", *flags) as server:
            answer = httpx.get(
                f"http://127.0.0.1:{server.port}/v1/limits", headers={"authorization": "Bearer sk-boss"}, timeout=60
            )
        assert answer.json()["limits"].get("requests_per_minute") == expected
    assert Limits().default.requests_per_minute is None


async def test_naming_one_item_thousands_of_times_makes_no_larger_request_than_a_body() -> None:
    """4,096 names of an item of a megabyte were four gigabytes of messages."""
    async with assembled() as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:

        async def respond(text: Any, **fields: str) -> httpx.Response:
            body = {"model": "simulated", "input": text, "max_output_tokens": 4, **fields}
            return await http.post("/v1/responses", json=body)

        first = (await respond("Of the sea.")).json()["id"]
        second = (await respond("word " * 400, previous_response_id=first)).json()["id"]
        (large, *_) = (await http.get(f"/v1/responses/{second}/input_items")).json()["data"]
        references = [{"type": "item_reference", "id": large["id"]}] * 4096
        answer = await respond(references, previous_response_id=first)  # it does not stand above that one
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_text_that_no_message_may_have_is_not_counted_either(name: str) -> None:
    """4 MiB held the event loop for 0.8 s."""
    path, body = QUESTIONS[name]
    async with assembled() as server, httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        answer = await http.post(path, json={"model": "simulated", **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "content_too_large")
