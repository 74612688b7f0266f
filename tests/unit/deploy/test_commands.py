"""`./sessile doctor` and `./sessile plan`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from deploy.commands.doctor import ANSWER_BYTES_MAX, observe_gateway
from deploy.commands.plan import run_plan
from transport.cli.plan import PlanCluster
from transport.cli.settings import BadSetting
from transport.ops.diagnosis import GatewayObserved

UNREADY = "HTTP/1.1 503 Service Unavailable"


async def observed(status: str, body: bytes, *, length: int | None = None) -> GatewayObserved:
    """Of a gateway that answers so; without its address."""
    head = f"{status}\r\ncontent-length: {len(body) if length is None else length}\r\nconnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        seen = await asyncio.to_thread(observe_gateway, f"http://127.0.0.1:{port}/")
    return msgspec.structs.replace(seen, url="")


async def test_a_gateway_is_ready_or_says_why_not() -> None:
    assert await observed("HTTP/1.1 200 OK", b"{}") == GatewayObserved(url="")
    reason = json.dumps({"reason": "draining"}).encode()
    assert await observed(UNREADY, reason) == GatewayObserved(url="", unready="draining")
    assert await observed("HTTP/1.1 200 OK", b"OK") == GatewayObserved(url=""), "behind a proxy of its own mind"
    lag = b'{"status": "ok", "replication_lag_s": 1.5}'
    assert await observed("HTTP/1.1 200 OK", lag) == GatewayObserved(url="", replication_lag_s=1.5)


async def test_what_is_no_gateway_is_a_failure() -> None:
    endless = json.dumps({"reason": "x" * ANSWER_BYTES_MAX}).encode()
    for body in (b"", b"[]", b"<html>", b"\xff", endless):
        seen = await observed(UNREADY, body)
        assert seen == GatewayObserved(url="", failure="it answers 503 and no reason"), body[:10]
    cut = await observed(UNREADY, b'{"reason":', length=100)
    assert cut.failure == "it answers 503 and no reason"
    assert "does not speak HTTP" in (await observed("\x15\x03\x03", b"of another door")).failure
    assert "no http:// or https:// address" in observe_gateway("file:///etc/passwd").failure


SMALL: dict[str, Any] = {"of": "llama-3.1-8b", "gpu": "h100", "sessions": 100}


def test_a_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan(PlanCluster(**SMALL)) == 0
    printed = capsys.readouterr().out
    assert "x h100: " in printed and "limit: " in printed and "computed anew" in printed


def test_json_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan(PlanCluster(**SMALL, as_json=True)) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["fits"] and body["options"][0]["gpus"] >= 1
    assert run_plan(PlanCluster(**SMALL, tpot_ms=0.01, as_json=True)) == 1
    assert not json.loads(capsys.readouterr().out)["fits"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "h900"}, "'h900' is not known"),
        ({"gpu": ","}, "is not known"),
        ({"of": "nothing"}, "no config.json is there"),
        ({"sessions": 0}, "sessions: 0"),
        ({"trace": "/no/such/trace"}, "No such file"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        run_plan(PlanCluster(**(SMALL | changes)))


@pytest.mark.parametrize("changes", [{"tpot_ms": -1.0}, {"host_gb": float("nan")}, {"spare": -1}])
def test_options_out_of_bounds_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match="expected 0 to"):
        PlanCluster(**changes)
