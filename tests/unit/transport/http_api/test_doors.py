"""Which doors are loaded late, and that a request finds the same routes as if all had been there."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from persistence.memory.journal import MemoryJournal
from tests.support.doors.transport import FakeSessions, gateway_over
from transport.http_api.doors import DOORS, RARE_DOORS, Part, doors_of, is_rare
from transport.http_api.late_app import LateApp
from transport.ops.prometheus import MetricsExposition


def routes_of(door: str) -> list[Any]:
    return list(importlib.import_module(f"transport.http_api.routes.{door}").routes.routes)


@pytest.mark.parametrize("door", DOORS)
def test_a_path_leads_to_the_part_that_has_its_door(door: str) -> None:
    common = [route.path_regex for each in doors_of("common") for route in routes_of(each)]
    for route in routes_of(door):
        path = re.sub(r"\{\w+(:path)?\}", "x", route.path)
        assert is_rare(path) == (door in RARE_DOORS), path
        if door in RARE_DOORS:
            assert not any(regex.match(path) for regex in common), path


def test_the_parts_have_all_doors_in_their_order() -> None:
    assert set(RARE_DOORS) == set(doors_of("rare"))
    assert sorted((*doors_of("common"), *doors_of("rare")), key=DOORS.index) == doors_of("whole") == list(DOORS)
    assert is_rare("/openapi.json")
    assert not any(map(is_rare, ("/", "/healthz", "/metrics", "/auth/sign-in", "/styles.css", "/v1", "/v1/nothing")))


@pytest.mark.parametrize("failing", ["common", "rare"])
async def test_a_part_that_could_not_be_made_is_made_at_the_next_request(
    failing: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = gateway_over(FakeSessions(MemoryJournal()))
    exposition = MetricsExposition(gateway.measures, version="1", role="test")
    app, make, asked = LateApp(gateway, readiness=lambda: None, web=None, exposition=exposition), LateApp._make, []

    def made(late: LateApp, part: Part) -> Any:
        asked.append(part)
        if asked.count(part) == 1 and part == failing:
            raise MemoryError
        return make(late, part)

    monkeypatch.setattr(LateApp, "_make", made)
    with pytest.raises(MemoryError):
        await app.part("rare")
    assert await app.part("rare") is await app.part("rare")
    assert asked.count("rare") == (2 if failing == "rare" else 1)
