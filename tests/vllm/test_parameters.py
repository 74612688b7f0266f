"""Sampling parameters in vLLM's words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inference.sampling import HONOURED
from inference.vllm.sampling import sampling_params
from sessions.model.generation import GenerationRequest
from sessions.model.types import Sampling
from testbed.engine_client import key, request
from tests.support.engines.sampling_fields import fields_read

pytestmark = [pytest.mark.vllm]


def made(sampling: Sampling, emitted: tuple[int, ...] = ()) -> Any:
    given = request(key("a"), (1, *emitted), sampling=sampling, emitted=emitted)
    return sampling_params(given, max_tokens=50, vocabulary_size=100, end_tokens=(2,), transfer={})


def test_ends_and_least_lengths() -> None:
    assert {"min_tokens", "stop_token_ids", "ignore_eos"} <= HONOURED
    plain = made(Sampling(stop_token_ids=(7,)))
    assert sorted(plain.stop_token_ids) == [2, 7] and not plain.ignore_eos and plain.min_tokens == 0
    ignoring = made(Sampling(ignore_eos=True, stop_token_ids=(7,)))
    assert ignoring.ignore_eos and list(ignoring.stop_token_ids) == [7]
    assert made(Sampling(min_tokens=10)).min_tokens == 10
    assert made(Sampling(min_tokens=10), emitted=(3, 4, 5)).min_tokens == 7  # what was written counts
    assert made(Sampling(min_tokens=1000)).min_tokens == 50


def test_the_engine_lists_the_fields_that_vllm_gets() -> None:
    def parameters(given: GenerationRequest) -> Any:
        return msgspec.structs.asdict(
            sampling_params(given, max_tokens=50, vocabulary_size=100, end_tokens=(2,), transfer={})
        )

    assert fields_read(parameters) == HONOURED
