"""When a silent end is dead: its host answers a knock, or does not, or never did."""

from __future__ import annotations

import pytest

from actors.peer.links import LinkLimits
from actors.peer.silence import SilenceDetector, SilenceFinding

LIMITS = LinkLimits()
QUICK = LIMITS.quick_beat_s


def measured(after_s: float = 0.001) -> SilenceDetector:
    """Of an end that beats quickly, after the first knock was answered."""
    silence = SilenceDetector(LIMITS, knocks=True)
    silence.promised(QUICK)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.KNOCK and silence.measuring
    silence.answered(after_s)
    assert not silence.measuring
    return silence


def findings(silence: SilenceDetector, beats: int, *, pace_s: float = QUICK) -> list[SilenceFinding]:
    return [silence.beat(pace_s, heard=False) for _ in range(beats)]


def test_a_host_that_is_lost_while_its_process_stands_still_is_noticed() -> None:
    silence = measured()
    assert findings(silence, 2)[-1] is SilenceFinding.KNOCK
    silence.answered(0.001)
    assert findings(silence, 4) == [
        SilenceFinding.ALIVE,
        SilenceFinding.KNOCK,
        SilenceFinding.ALIVE,
        SilenceFinding.UNREACHABLE,
    ]


def test_a_word_withdraws_the_knock() -> None:
    silence = measured()
    findings(silence, 2)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.WITHDRAW
    assert findings(silence, 2) == [SilenceFinding.ALIVE, SilenceFinding.KNOCK]


def test_answers_that_take_long_are_given_longer() -> None:
    silence = measured(0.15)
    assert findings(silence, 7) == [SilenceFinding.ALIVE, SilenceFinding.KNOCK, *[SilenceFinding.ALIVE] * 5][:7]
    assert silence.beat(QUICK, heard=False) is SilenceFinding.UNREACHABLE
    slow = measured(1.0)  # so long that beats are the faster way
    assert SilenceFinding.UNREACHABLE not in findings(slow, 14)
    assert slow.beat(QUICK, heard=False) is SilenceFinding.SILENT


def test_a_host_that_never_answered_is_not_judged_by_that() -> None:
    silence = SilenceDetector(LIMITS, knocks=True)
    silence.promised(QUICK)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.KNOCK
    waiting = [silence.beat(QUICK, heard=True) for _ in range(15)]
    assert waiting[-1] is SilenceFinding.WITHDRAW
    assert set(findings(silence, 14)) == {SilenceFinding.ALIVE}
    assert silence.beat(QUICK, heard=False) is SilenceFinding.SILENT


def test_a_refusal_while_it_is_heard_says_that_knocks_are_of_no_use() -> None:
    silence = SilenceDetector(LIMITS, knocks=True)
    silence.promised(QUICK)
    assert silence.beat(QUICK, heard=True) is SilenceFinding.KNOCK
    silence.unanswerable()
    assert set(findings(silence, 14)) == {SilenceFinding.ALIVE}


@pytest.mark.parametrize("every_s", [0.0, LIMITS.beat_s])
def test_an_end_that_does_not_beat_quickly_is_not_knocked(every_s: float) -> None:
    """One of an older version, or of a link without anything to lose."""
    silence = measured()
    silence.promised(every_s)
    assert set(findings(silence, 14)) == {SilenceFinding.ALIVE}


def test_without_a_way_to_knock_beats_alone_count() -> None:
    silence = SilenceDetector(LIMITS, knocks=False)
    silence.promised(QUICK)
    assert {silence.beat(QUICK, heard=True), *findings(silence, 14)} == {SilenceFinding.ALIVE}
    assert silence.beat(QUICK, heard=False) is SilenceFinding.SILENT
