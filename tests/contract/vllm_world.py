"""vLLM for the contract suite and its own tests: engines that share two started cores.

vLLM takes 15 s to start, so a core outlives the engine that used it: closing an engine ends its runs and its tiers, and
the core goes to the next engine of the same make, its device cache emptied. All tests run on one event loop (`make
test-vllm` says so), because a core lives on the loop that it was started on.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from inference.vllm.core import VllmCore
from inference.vllm.engine import VllmEngine
from inference.vllm.options import VllmOptions
from sessions.ports import Engine
from tests.contract.engines import SLOTS, WINDOW, World

MODEL = Path(__file__).resolve().parents[2] / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
BLOCK_TOKENS = 32  # the least that vLLM can do on a CPU
BLOCKS = 1 + 8 * WINDOW // BLOCK_TOKENS  # vLLM keeps one for itself


def vllm_options(folder: Path, **others: Any) -> VllmOptions:
    settings: dict[str, Any] = {
        "model_path": MODEL,
        "slots": SLOTS,
        "context_window": WINDOW,
        "block_tokens": BLOCK_TOKENS,
        "device_blocks": BLOCKS,
        "device_kv_bytes": 500_000_000,
        "waiting_max": 4,
        "disk_folder": folder / "kv",
        "host_bytes_max": 1 << 30,
        "engine_args": {"dtype": "float32"},
    }
    return VllmOptions(**(settings | others))


class Cores:
    """Started cores that no engine uses, by what they were started with."""

    def __init__(self) -> None:
        self._idle: dict[str, list[LentCore]] = {}

    def borrow(self, options: VllmOptions) -> LentCore:
        make = f"{options.slots} {options.device_blocks} {options.block_tokens} {options.spill} {options.engine_args}"
        idle = self._idle.setdefault(make, [])
        return idle.pop() if idle else LentCore(options, make, self)

    def take_back(self, core: LentCore) -> None:
        self._idle[core.make].append(core)

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                core = idle.pop()
                VllmCore.close(core)
                if core.folder is not None:
                    core.folder.unlink(missing_ok=True)


class LentCore(VllmCore):
    """A core whose process outlives the engine that it is lent to."""

    def __init__(self, options: VllmOptions, make: str, cores: Cores) -> None:
        super().__init__(options)
        self.make = make
        self._cores = cores
        self.folder: Path | None = None

    async def start(self, context_window: int, connector_folder: str | None) -> None:
        """The connector of a lent core goes on writing to the folder that it was started with: a link leads on."""
        if self._llm is None:
            if connector_folder is not None:
                self.folder = Path(tempfile.gettempdir()) / f"sessile-lent-{os.urandom(4).hex()}"
                self.folder.symlink_to(connector_folder)
            await super().start(context_window, None if self.folder is None else str(self.folder))
            return
        assert await self.reset(), "blocks of the test before are still in use"
        if self.folder is not None and connector_folder is not None:
            self.folder.unlink(missing_ok=True)
            self.folder.symlink_to(connector_folder)

    def close(self) -> None:
        self._cores.take_back(self)


class VllmWorld(World):
    name = "vllm"
    block_tokens = BLOCK_TOKENS
    cores = Cores()

    def _make(self, waiting_max: int) -> Engine:
        return self.make(waiting_max=waiting_max)

    def make(self, **others: Any) -> VllmEngine:
        options = vllm_options(self.folder, staging_folder=self.folder / "staging", **others)
        return VllmEngine(options, core=self.cores.borrow(options))
