"""`/v1/usage` and the cost of a response, over HTTP: sums, rows, pages, and who may see whose."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sessions.billing.prices import PriceBook, read_prices
from sessions.model.types import Principal, TenantId
from tests.support.doors.assembly import Assembly, assembled
from transport.auth.authenticator import key_digest

PRICES = 'currency = "USD"\n[[prices]]\nmodel = "*"\ninput = 1\ncached = 0.5\noutput = 2'
ACME, OTHER = TenantId("acme"), TenantId("other")
KEYS = {
    key_digest(name): principal
    for name, principal in {
        "ann": Principal(tenant=ACME, key_id="k1", user="ann", scopes=("chat", "read", "usage")),
        "bob": Principal(tenant=ACME, key_id="k2", user="bob", scopes=("chat", "read", "usage")),
        "mute": Principal(tenant=ACME, key_id="k3", user="bob"),
        "service": Principal(tenant=ACME, key_id="k4", role="service", scopes=("chat", "read", "usage")),
        "stranger": Principal(tenant=OTHER, key_id="k5", role="service", scopes=("chat", "read", "usage")),
        "operator": Principal(tenant=OTHER, key_id="k6", role="operator", scopes=("read", "usage", "admin")),
    }.items()
}


def bearing(server: Assembly, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.server.url, headers={"authorization": f"Bearer {key}"}, timeout=60)


async def ask(server: Assembly, key: str, tokens: int = 5) -> dict[str, Any]:
    async with bearing(server, key) as http:
        body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


async def usage(server: Assembly, key: str, path: str = "/v1/usage", **query: Any) -> dict[str, Any]:
    async with bearing(server, key) as http:
        answer = await http.get(path, params=query)
        return {"status": answer.status_code, **answer.json()}


async def test_what_was_used_is_summed_for_those_who_may_see_it() -> None:
    async with assembled(keys=KEYS, prices=PriceBook(read_prices(PRICES))) as server:
        spent, again = [(await ask(server, "ann"))["usage"] for _ in range(2)]
        for key in ("bob", "stranger"):
            await ask(server, key)
        assert spent["cost"]["currency"] == "USD"
        price = spent["prompt_tokens"] + 2 * spent["completion_tokens"]
        assert float(spent["cost"]["amount"]) == pytest.approx(price / 1e6)

        mine = await usage(server, "ann")
        (only,) = mine["data"]
        assert (only["user"], only["model"], only["responses"]) == ("ann", "simulated", 2)
        assert only["output_tokens"] == 10
        assert again["prompt_tokens_details"]["cached_tokens"] > 0, "her other conversation's KV is hers"
        both = float(spent["cost"]["amount"]) + float(again["cost"]["amount"])
        assert float(only["cost"]["amount"]) == pytest.approx(both) and both < 2 * price / 1e6
        assert (await usage(server, "ann", user="bob"))["data"] == mine["data"], "a user's key sees that user's"
        whole = await usage(server, "service")
        assert [row["user"] for row in whole["data"]] == ["ann", "bob"]
        assert (await usage(server, "service", user="bob"))["data"] == whole["data"][1:]
        by_day = await usage(server, "service", group_by="day")
        assert [(row["responses"], "user" in row) for row in by_day["data"]] == [(3, False)]
        assert [row["responses"] for row in (await usage(server, "stranger"))["data"]] == [1]

        first = await usage(server, "service", limit=1)
        assert first["has_more"]
        rest = await usage(server, "service", limit=1, after=first["last_id"])
        assert not rest["has_more"]
        assert first["data"] + rest["data"] == whole["data"]

        rows = await usage(server, "service", "/v1/usage/responses")
        assert [row["user"] for row in rows["data"]] == ["ann", "ann", "bob"]
        assert rows["data"][0]["cost"] == spent["cost"]
        behind = await usage(server, "service", "/v1/usage/responses", after=rows["data"][0]["seq"], limit=1)
        assert behind["data"] == rows["data"][1:2] and behind["has_more"]
        assert (await usage(server, "service", to="2020-01-01"))["data"] == []


async def test_others_usage_is_for_operators_and_bad_questions_are_refused() -> None:
    async with assembled(keys=KEYS) as server:
        told = await ask(server, "ann")
        assert "cost" not in told["usage"], "without prices nothing has a cost"
        (only,) = (await usage(server, "service"))["data"]
        assert only["cost"] is None
        assert (await usage(server, "mute"))["status"] == 403
        for path in ("/v1/usage", "/v1/usage/responses"):
            assert (await usage(server, "stranger", path, tenant="acme"))["status"] == 403
            assert len((await usage(server, "operator", path, tenant="acme"))["data"]) == 1
            assert (await usage(server, "operator", path))["data"] == []
            assert (await usage(server, "nobody", path))["status"] == 401
        for query in (
            {"from": "soon"},
            {"from": "2026-02-01", "to": "2026-01-01"},
            {"group_by": "hour"},
            {"after": "?"},
            {"limit": 0},
        ):
            assert (await usage(server, "service", **query))["status"] == 400, query
