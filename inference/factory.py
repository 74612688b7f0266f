"""Makes the engine that the settings name. Engines are imported only when wanted: llama.cpp's library is 100 MB."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Protocol

from sessions.ports import Engine


class EngineSettings(Protocol):
    """What of the application's settings concerns engines; their meaning is documented by `--help`."""

    @property
    def engine(self) -> Literal["llama", "sim"]: ...
    @property
    def data(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def chat_template(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def kv_disk_mb(self) -> int: ...
    @property
    def sim_tokens_per_s(self) -> float: ...
    @property
    def sim_prefill_per_s(self) -> float: ...
    @property
    def sim_answer_tokens(self) -> int: ...


def make_engine(settings: EngineSettings) -> Engine:
    """An engine that has not started. Raises BadInput that names a wrong setting."""
    if settings.engine == "sim":
        return _simulated(settings)
    return _llama(settings)


def _simulated(settings: EngineSettings) -> Engine:
    from inference.simulated import SimulatedEngine, SimulatedOptions

    window = settings.context or 8192
    return SimulatedEngine(
        SimulatedOptions(
            slots=settings.slots,
            context_window=window,
            kv_tokens_max=max(262_144, window * settings.slots),
            step_base_s=1 / settings.sim_tokens_per_s,
            prefill_tokens_per_s=settings.sim_prefill_per_s,
            answer_tokens_mean=settings.sim_answer_tokens,
        )
    )


def _llama(settings: EngineSettings) -> Engine:
    from inference.llama import LlamaEngine, LlamaOptions

    return LlamaEngine(
        LlamaOptions(
            model_path=Path(settings.model),
            slots=settings.slots,
            context_window=settings.context or 1 << 20,  # cut to what the model was trained for
            threads=settings.threads or max(1, (os.cpu_count() or 1) - 1),
            chat_template=None if settings.chat_template == "model" else settings.chat_template,
            disk_folder=Path(settings.data) / "kv" if settings.kv_disk_mb else None,
            disk_bytes_max=settings.kv_disk_mb * 1_000_000,
        )
    )
