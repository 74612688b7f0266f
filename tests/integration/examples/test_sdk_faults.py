"""The Python client through a network that cuts, delays and goes silent: a few rounds."""

from __future__ import annotations

from tests.support.rounds.sdk_faults import Logged, Shown, faults_of, rounds


async def test_the_text_shown_is_the_log_whatever_the_network_does() -> None:
    result = await rounds(24, "short")
    assert result["faults"] == []
    assert result["rounds"] == 24
    assert result["connections"] > 24, "nothing was cut: the network was too good"


def test_the_checker_sees_what_it_looks_for() -> None:
    logged = Logged(["one", "two"], top=4, messages=2)
    assert faults_of(Shown("s", ["one", "two"], [2, 3, 4]), logged) == []
    assert faults_of(Shown("s", ["one", "twotwo"], []), logged) != []
    assert faults_of(Shown("s", ["one", "two"], [2, 2, 3, 4]), logged) != []
    assert faults_of(Shown("s", ["one", "two"], [2, 3]), logged) != []
    assert faults_of(Shown("s", ["one", "two"], []), logged._replace(messages=3)) != []
