"""A small, repeatable part of the fuzzing from the OpenAPI document; `make fuzz` runs twenty thousand cases."""

from __future__ import annotations

import pytest

from testbed.server_process import ServerProcess
from tests.support.rounds.openai_fuzz import FAST, fuzzed


@pytest.mark.slow
def test_every_answer_is_as_the_document_says() -> None:
    with ServerProcess(*FAST) as server:
        done = fuzzed(f"http://127.0.0.1:{server.port}", cases=160, number=7)
    assert done.problems == []
    assert done.cases >= 120 and done.statuses[200] >= 20 and done.statuses[400] >= 20


@pytest.mark.slow
def test_a_seed_repeats_its_sequences() -> None:
    digests = []
    for number in (7, 7, 8):
        with ServerProcess(*FAST) as server:
            done = fuzzed(f"http://127.0.0.1:{server.port}", cases=80, number=number)
        digests.append(done.digests["sequences"])
    assert digests[0] == digests[1] != digests[2]
