"""Ideal times: what they grow with, and how a replica's memory is cut."""

from __future__ import annotations

import pytest

from deploy.planning.gpus import GPUS
from deploy.planning.models import find_shape
from deploy.planning.roofline import (
    Parallelism,
    Precision,
    decode_terms,
    kv_shards,
    prefill_terms,
    weight_bytes_per_gpu,
)

BF16 = Precision(weights=2.0, kv=2.0)
H200 = GPUS["h200"]


def test_a_single_answer_takes_what_reading_the_weights_takes() -> None:
    terms = decode_terms(find_shape("llama-3.1-405b"), H200, Parallelism(tensor=8), BF16, batch=1, context=1)
    assert terms.weights_s == pytest.approx(403.7e9 * 2 / 8 / 4.8e12, rel=0.01)


def test_many_answers_are_bound_by_arithmetic() -> None:
    shape, spread = find_shape("llama-3.1-8b"), Parallelism()
    few, many = (decode_terms(shape, H200, spread, BF16, batch=batch, context=1) for batch in (1, 4096))
    assert many.weights_s == pytest.approx(2 * shape.active_params * 4096 / 989e12, rel=0.01)
    assert few.weights_s < many.weights_s


def test_one_answer_reads_its_experts_and_many_read_all() -> None:
    shape = find_shape("deepseek-r1")
    spread = Parallelism(tensor=8)
    one, many = (decode_terms(shape, H200, spread, BF16, batch=batch, context=1) for batch in (1, 400))
    assert many.experts_s / one.experts_s == pytest.approx(256 / 8, rel=0.01)


def test_a_latent_lies_whole_on_each_gpu_and_heads_are_cut() -> None:
    spread = Parallelism(tensor=8)
    assert kv_shards(find_shape("deepseek-r1"), spread) == 1
    assert kv_shards(find_shape("llama-3.1-8b"), spread) == 8
    assert kv_shards(find_shape("qwen3-235b-a22b"), spread) == 4


def test_400b_in_16_bits_need_more_than_eight_h100() -> None:
    shape = find_shape("llama-3.1-405b")
    assert weight_bytes_per_gpu(shape, Parallelism(tensor=8), BF16) > GPUS["h100"].memory
    assert weight_bytes_per_gpu(shape, Parallelism(tensor=8), BF16) < H200.memory
    assert weight_bytes_per_gpu(shape, Parallelism(tensor=8, pipeline=2), BF16) < GPUS["h100"].memory


def test_a_long_prompt_costs_more_than_its_tokens() -> None:
    shape, spread = find_shape("llama-3.1-8b"), Parallelism()
    short, long = (prefill_terms(shape, H200, spread, BF16, tokens=n, context=0)[0] for n in (1000, 100_000))
    assert long > 150 * short
