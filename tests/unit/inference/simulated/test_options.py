"""Options of the simulated engine that make no sense are refused by name."""

from __future__ import annotations

import pytest

from inference.simulated import SimulatedOptions
from sessions.model.errors import BadInput


@pytest.mark.parametrize(
    ("name", "value"),
    [("slots", 0), ("step_base_s", -1.0), ("step_base_s", 0.0), ("prefill_tokens_per_s", 0.0), ("kv_tokens_max", 10)],
)
def test_options_that_make_no_sense_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(BadInput) as refused:
        SimulatedOptions(**{name: value})  # type: ignore[arg-type]
    assert refused.value.param == name
