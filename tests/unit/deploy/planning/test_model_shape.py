"""Parameters and KV of published models, and configs that cannot be planned for."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.planning.model_shape import BadModel, read_shape
from deploy.planning.models import find_shape, known_models

DENSE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "intermediate_size": 128,
}


@pytest.mark.parametrize(
    ("name", "total", "active", "kv_bytes"),
    [
        ("llama-3.1-405b", 405.8e9, 405.8e9, 516_096),
        ("llama-3.1-8b", 8.03e9, 8.03e9, 131_072),
        ("deepseek-r1", 671e9, 37e9, 70_272),
        ("qwen3-235b-a22b", 235e9, 22e9, 192_512),
        ("gpt-oss-120b", 117e9, 5.1e9, 36_864),
    ],
)
def test_published_sizes_are_met(name: str, total: float, active: float, kv_bytes: int) -> None:
    shape = find_shape(name)
    assert shape.total_params == pytest.approx(total, rel=0.01)
    assert shape.active_params == pytest.approx(active, rel=0.07)
    long = shape.kv_bytes(200_001, 2) - shape.kv_bytes(200_000, 2)
    assert long == (kv_bytes if shape.window_layers == 0 else 36_864)


def test_every_known_model_is_read() -> None:
    assert {find_shape(name).name for name in known_models()} == {row["name"] for row in known_models().values()}


def test_a_window_bounds_what_its_layers_keep() -> None:
    windowed = read_shape(DENSE | {"sliding_window": 10}, "windowed")
    assert windowed.kv_bytes(10, 2) == windowed.kv_bytes(1000, 2) == read_shape(DENSE, "full").kv_bytes(10, 2)


def test_tied_embeddings_are_counted_once_and_read_at_every_step() -> None:
    tied, untied = read_shape(DENSE | {"tie_word_embeddings": True}, "tied"), read_shape(DENSE, "untied")
    assert untied.total_params - tied.total_params == 100 * 64
    assert tied.active_params == untied.active_params


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"hidden_size": -1}, "expected a positive whole number"),
        ({"num_hidden_layers": "two"}, "expected a positive whole number"),
        ({"num_hidden_layers": 100_000}, "expected at most 4096"),
        ({"layer_types": ["full_attention"]}, "names 1 layers"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "of 4 experts"),
        ({"hybrid_override_pattern": "M*"}, "not planned for yet"),
    ],
)
def test_what_cannot_be_planned_for_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        read_shape(DENSE | change, "odd")


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "max_position_embeddings"])
def test_what_is_zero_is_as_if_it_were_not_there(key: str) -> None:
    absent = {name: value for name, value in DENSE.items() if name != key}
    assert read_shape(DENSE | {key: 0}, "zero") == read_shape(absent, "zero")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BadModel, match=r"llama-3\.1-405b"):
        find_shape("no-such-model")
