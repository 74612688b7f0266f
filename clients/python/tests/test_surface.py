"""The client without async offers what the one with it does, under the same names with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from sessile_client import Client, Response, Session, sync

PAIRS = [(Client, sync.Client), (Session, sync.Session), (Response, sync.Response)]
#: async code asks whether it may wait; threads wait
WITHOUT: set[str] = {"url", "limits"}


def public(cls: type) -> dict[str, Any]:
    return {name: each for name, each in vars(cls).items() if not name.startswith("_")}


@pytest.mark.parametrize(("with_async", "without"), PAIRS)
def test_nothing_is_missing(with_async: type, without: type) -> None:
    assert set(public(with_async)) - set(public(without)) == set()


@pytest.mark.parametrize(("with_async", "without"), PAIRS)
def test_parameters_are_the_same(with_async: type, without: type) -> None:
    for name, method in public(with_async).items():
        if inspect.isfunction(method):
            wanted = set(inspect.signature(method).parameters)
            offered = set(inspect.signature(public(without)[name]).parameters)
            assert wanted <= offered, name


@pytest.mark.parametrize(
    "method",
    [
        "appeal",
        "cancel",
        "compact",
        "delete",
        "edit",
        "pin",
        "regenerate",
        "send",
        "steer",
        "tool_output",
        "undo_compaction",
        "update",
    ],
)
def test_every_command_on_a_session_takes_an_idempotency_key(method: str) -> None:
    for cls in (Session, sync.Session):
        assert "command_id" in inspect.signature(getattr(cls, method)).parameters
    for client in (Client, sync.Client):
        assert {"command_id"} <= set(inspect.signature(client.create_session).parameters)
        assert {"command_id"} <= set(inspect.signature(client.command).parameters)
