"""The smaller model that settings name: made with the model, or refused with what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference import make_engine
from inference.simulated import SimulatedEngine
from inference.switching import SwitchingEngine
from sessions.errors import BadInput
from tests.unit.inference.gguf_support import METADATA, TENSORS, gguf
from transport.command_line.settings import Settings


def refused(**settings: Any) -> str:
    with pytest.raises(BadInput) as error:
        make_engine(Settings(**settings))
    assert (error.value.code, error.value.param) == ("bad_brownout_model", "brownout_model")
    return error.value.public_message


async def test_a_simulated_one_is_faster_and_has_half_the_slots_unless_told_otherwise() -> None:
    engine = make_engine(Settings(engine="sim", brownout_model="tiny", sim_brownout_speed=5.0, slots=8))
    assert isinstance(engine, SwitchingEngine)
    await engine.start()
    try:
        main, smaller = engine.main, engine.smaller
        assert isinstance(main, SimulatedEngine) and isinstance(smaller, SimulatedEngine)
        assert (engine.info.smaller_model, smaller.info.slots) == ("tiny", 4)
        assert smaller.options.step_base_s == pytest.approx(main.options.step_base_s / 5)
        assert smaller.info.context_window == main.info.context_window
    finally:
        await engine.close()
    engine = make_engine(Settings(engine="sim", brownout_model="tiny", brownout_slots=7, slots=1))
    await engine.start()
    assert engine.info.smaller is not None and engine.info.smaller.slots == 7
    await engine.close()


def test_a_wrong_path_the_model_itself_and_an_engine_that_cannot_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "model.gguf", tmp_path / "link.gguf"
    path.write_bytes(gguf(METADATA, TENSORS))
    other.symlink_to(path)
    nowhere = tmp_path / "nowhere.gguf"
    assert f"{nowhere} is no file" in refused(model=str(path), brownout_model=str(nowhere))
    assert f"{tmp_path} is no file" in refused(model=str(path), brownout_model=str(tmp_path))
    assert f"{other} is the model itself" in refused(model=str(path), brownout_model=str(other))
    assert "vLLM has none beside it" in refused(engine="vllm", brownout_model=str(path))
