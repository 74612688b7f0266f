"""Every metric that dashboard, alert rules and docs/metrics.md name is in a scrape of a server that ran turns."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.limit_services import admission_of, open_limits
from inference.simulated import SimulatedEngine
from persistence.memory.store import MemoryStore
from sessions.limits import DEFAULT_LIMITS
from sessions.metrics import Metrics
from tests.support.doors.assembly import Assembly, assembled
from tests.support.kubernetes.manifests import of_kind, render
from transport.ops.prometheus import MetricsExposition

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(r"\b(?:sessile|process)_[a-z0-9_]+")
SUFFIXES = ("_bucket", "_sum", "_count", "_total")
GATEWAYS_ONLY = {
    "sessile_replicas",
    "sessile_router_retries",
}  # of `transport.ops.metric_sources.register_router_metrics`; tested below
WORKERS_ONLY = {"sessile_documents", "sessile_images"}  # here files are read without workers
WHERE_WANTED = {  # with a setting that asks for what they count
    "sessile_result_cache_entries",
    "sessile_result_cache_stores",
    "sessile_result_cache_bytes",
    "sessile_result_cache_lookups",
    "sessile_embedding_batch_duration_seconds",
    "sessile_embedding_batches_waiting",
    "sessile_push_sent",
    "sessile_tool_call_duration_seconds",
    "sessile_push_failures",
    "sessile_push_dropped",
    "sessile_usage_rows_relayed",
    "sessile_usage_relay_failures",
    "sessile_guard_texts",
    "sessile_limits_not_settled",
    "sessile_admission_refused",
    "sessile_admission_smaller_model",
    "sessile_journal_reencryption_pending",
    "sessile_journal_reencrypted_rows",
    "sessile_journal_unreadable_rows",
    "sessile_model_switches",
    "sessile_replication_lag_seconds",
    "sessile_replication_restarts",
}


@pytest.fixture
async def server() -> AsyncIterator[Assembly]:
    async with assembled() as running:
        yield running


async def scrape(server: Assembly) -> str:
    async with httpx.AsyncClient(base_url=server.server.url, timeout=60) as http:
        body = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        for _ in range(2):
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        answer = await http.get("/metrics")
        assert answer.status_code == 200
        return answer.text


def families(text: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(text)}


def base(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "sessile.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def named() -> dict[str, set[str]]:
    """The names by the file that says them."""
    texts = {
        "dashboard": [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())],
        "alerts": [rule["expr"] for rule in rules()],
        "documentation": [(ROOT / "docs" / "metrics.md").read_text()],
    }
    return {where: {base(name) for text in found for name in NAME.findall(text)} for where, found in texts.items()}


async def test_everything_that_is_named_is_there(server: Assembly) -> None:
    there = {base(name) for name in families(await scrape(server))} | GATEWAYS_ONLY | WHERE_WANTED | WORKERS_ONLY
    for where, names in named().items():
        assert len(names) > 10, where
        assert names - there == set(), where


async def test_everything_that_is_there_is_documented(server: Assembly) -> None:
    ours = {name for name in families(await scrape(server)) if name.startswith("sessile_")}
    assert {base(name) for name in ours} - named()["documentation"] == set()


async def test_turns_are_in_the_scrape_and_nobody_s_name_is(server: Assembly) -> None:
    text = await scrape(server)
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["sessile_generation_tokens_total", ()] == 10
    assert samples["sessile_time_to_first_token_seconds_count", ()] == 2
    assert samples["sessile_inter_token_latency_seconds_count", ()] >= 2
    assert samples["sessile_request_success_total", (("finished_reason", "max_output_tokens"),)] == 2
    assert samples["sessile_journal_append_latency_seconds_count", ()] > 2
    assert samples["sessile_activations_total", (("cause", "new"),)] >= 1
    for session in server.runtime.keys_present():
        assert session.session not in text and f'"{session.tenant}"' not in text


async def test_what_the_chart_scales_by_is_there(server: Assembly) -> None:
    values = {
        "peers": {"insecure": True},
        "pools": {"main": {"autoscaling": {"enabled": True}}},
        "monitoring": {"prometheusUrl": "http://prometheus:9090"},
    }
    (scaled,) = of_kind(render(values), "ScaledObject")
    names = {name for each in scaled["spec"]["triggers"] for name in NAME.findall(each["metadata"]["query"])}
    samples = {
        sample.name for family in text_string_to_metric_families(await scrape(server)) for sample in family.samples
    }
    assert names - samples == {"sessile_admission_refused_total"}, "without limits there is no admission"
    measures = Metrics()
    async with open_limits("", "", MemoryStore().tallies, default=DEFAULT_LIMITS) as limited:
        assert admission_of(limited, SimulatedEngine(), measures) is not None
        text, _ = await MetricsExposition(measures, version="1", role="replica").text()
    assert b"sessile_admission_refused_total" in text


def test_panels_and_rules_are_whole() -> None:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len({panel["title"] for panel in panels}) == len(panels)
    spots = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(spots) == len(panels), "no panel lies on another"
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "action"} <= rule["annotations"].keys(), rule["alert"]
