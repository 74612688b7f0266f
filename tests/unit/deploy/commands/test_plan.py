"""`./sessile plan`: its table and JSON, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.commands.plan import run_plan
from transport.cli.plan import PlanCluster
from transport.cli.settings import BadSetting

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
