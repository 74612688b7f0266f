"""What is sent: mixes, traces, and prompts that are the same for the same seed."""

from __future__ import annotations

import pytest

from transport.load.workload import BUILT_IN_TRACE, TOOLS, BadWorkload, Workload, parse_mix, parse_trace


def test_a_mix_is_kinds_with_weights() -> None:
    assert parse_mix("short=6, long=0.5,tools") == {"short": 6.0, "long": 0.5, "tools": 1.0}
    for wrong in ("", "medium=1", "short=x", "short=-1", "short=0", "short=nan", "short=inf"):
        with pytest.raises(BadWorkload):
            parse_mix(wrong)


def test_a_trace_is_conversations_and_a_wrong_line_is_named() -> None:
    trace = parse_trace('{"turns": [{"prompt": "Hi", "think_s": 2}]}\n\n{"turns": [{"prompt_tokens": 9}]}\n')
    assert [each.turns[0].prompt for each in trace] == ["Hi", ""] and trace[0].turns[0].think_s == 2
    good = '{"turns": [{}]}\n'
    for wrong in ("[]", '{"turns": []}', '{"turns": [{"think_s": -1}]}', '{"turns": [{"planted": 1}]}', "{"):
        with pytest.raises(BadWorkload, match="line 2: "):
            parse_trace(good + wrong)
    with pytest.raises(BadWorkload, match="no conversation"):
        parse_trace("\n")


def test_a_seed_makes_the_same_dialogues_and_a_second_seed_different_ones() -> None:
    def first(seed: int) -> list[str]:
        workload = Workload({"short": 1, "long": 1}, seed=seed, long_tokens=50)
        return [workload.next_dialogue().turns[0].prompt for _ in range(8)]

    assert first(1) == first(1) != first(2)
    assert len(set(first(1))) == 8
    assert {len(each.split()) for each in first(1)} == {30, 50}


def test_each_kind_is_what_it_is_called() -> None:
    tools = Workload({"tools": 1}).next_dialogue()
    assert tools.tools == TOOLS and "weather" in tools.turns[0].prompt
    turns = Workload({"turns": 1}).next_dialogue()
    assert len(turns.turns) > 1 and turns.tools is None and turns.turns[1].think_s > 0
    assert all(each.prompt for each in turns.turns)
    assert any(len(turns.turns) == len(line.turns) for line in BUILT_IN_TRACE)
    given = Workload({"turns": 1}, parse_trace('{"turns": [{"prompt": "Hi"}]}'))
    assert given.next_dialogue().turns[0].prompt == "Hi"


def test_gaps_of_arrivals_have_the_mean_of_their_rate() -> None:
    workload = Workload({"short": 1}, seed=3)
    gaps = [workload.next_gap(4.0) for _ in range(4000)]
    assert 0.24 < sum(gaps) / len(gaps) < 0.26 and max(gaps) > 1
