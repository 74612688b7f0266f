"""Policies in force: by tenant, reloaded as a whole, and listeners of reloads."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference.moderation.filter_set import PolicyFilterSet, check_packages
from inference.moderation.output_filter import JudgedOutputFilter
from inference.moderation.policy import BadPolicy
from sessions.model.types import Principal, TenantId

POLICY = """
[policies.default]
[policies.careful]
mode = "strict"
[policies.careful.input]
phrases = { deny = ["nightjar"] }
[policies.careful.output]
phrases = { deny = ["nightjar"] }
[tenants]
acme = "careful"
"""
ACME = Principal(tenant=TenantId("acme"), key_id="k")
OTHER = Principal(tenant=TenantId("other"), key_id="k")


@asynccontextmanager
async def opened(path: Path, text: str = POLICY) -> AsyncIterator[PolicyFilterSet]:
    path.write_text(text)
    filters = PolicyFilterSet(str(path))
    await filters.open()
    try:
        yield filters
    finally:
        await filters.close()


async def test_a_side_with_classifiers_has_their_versions_in_its_findings(tmp_path: Path) -> None:
    text = "[policies.default.input]\ntoxicity = { action = 'flag' }\n"
    text += "[policies.default.output]\ntoxicity = { action = 'flag' }\n"
    async with opened(tmp_path / "p.toml", text) as filters:
        (message,), (answer,) = filters.input_filters(OTHER), filters.output_filters(OTHER)
        attack = "Go fuck yourself, asshole."
        (finding,) = (await message.check(OTHER, attack)).findings
        assert finding.category == "toxicity" and finding.model.startswith("alt-profanity-check/")
        assert isinstance(answer, JudgedOutputFilter)
        answer.feed(attack)
        await answer.settle()
        assert [each.model for each in answer.finish()[1].findings] == [finding.model]


async def test_what_cannot_be_opened_is_closed_again(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="default"):
        async with opened(tmp_path / "p.toml", "[policies.other]\n"):
            pass
    guarded = "[guards.default]\nmodel_path = 'none.gguf'\n[policies.default.input]\nguard = {}\n"
    with pytest.raises(BadPolicy, match=r"guards\.default: .*no such file"):
        async with opened(tmp_path / "p.toml", guarded):
            pass


def test_a_model_without_its_packages_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages(["guard"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadPolicy, match="setup-safety"):
        check_packages(["guard", "toxicity"])
