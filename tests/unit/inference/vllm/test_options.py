"""The options of the vLLM engine: what is out of range, or set in two places, is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from inference.vllm.options import VllmOptions
from sessions.model.errors import BadInput


def test_what_vllm_is_told_twice_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        VllmOptions(model_path=Path("m"), engine_args={"max_num_seqs": 3})
    assert "max_num_seqs" in refused.value.public_message
    for name, value in (("slots", 0), ("context_window", 10), ("disk_bytes_max", -1)):
        with pytest.raises(BadInput) as refused:
            VllmOptions(model_path=Path("m"), **cast(Any, {name: value}))
        assert refused.value.param == name
