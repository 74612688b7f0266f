"""vLLM for the contract suite and its own tests: engines that share two started cores.

vLLM takes 15 s to start, so a core outlives the engine that used it: closing an engine ends its runs and its tiers, and
the core goes to the next engine of the same make, its device cache emptied and its adapter taken out. All tests of a
worker run on one event loop (`make test-vllm` says so), because a core lives on the loop that it was started on.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from inference.vllm.async_llm import VllmCore
from inference.vllm.engine import VllmEngine
from inference.vllm.model_folder import Adapter
from inference.vllm.offload import KvOffload
from inference.vllm.options import VllmOptions
from sessions.ports import Engine
from tests.support.engines.chat_templates import FAMILIES, SPECIALS
from tests.support.engines.engines import SLOTS, WINDOW, AlwaysRestores, World
from tests.support.engines.tiny_seeing import write_tiny_seeing_folder

MODEL = Path(__file__).resolve().parents[3] / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1-vllm-fp32"
BLOCK_TOKENS = 32  # the least that vLLM can do on a CPU
BLOCKS = 1 + 8 * WINDOW // BLOCK_TOKENS  # vLLM keeps one for itself
STEP_TOKENS = 512  # so that a prompt can take several steps
FEW = 1 + WINDOW // BLOCK_TOKENS  # of a device under pressure: the least with which vLLM starts


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
        "step_target_ms": 60_000,  # how a prompt is cut is no clock's business here (test_step_time has its own)
        "engine_args": {"dtype": "float32", "max_num_batched_tokens": STEP_TOKENS},
    }
    return VllmOptions(**(settings | others))


class Idle(NamedTuple):
    """A started vLLM that no engine uses, the link that its connector reports through, and its KV's shape."""

    llm: Any
    link: Path | None
    shape: Any


class Cores:
    """What is idle, by what it was started with."""

    def __init__(self) -> None:
        self.idle: dict[str, list[Idle]] = {}

    def close(self) -> None:
        for held in self.idle.values():
            while held:
                idle = held.pop()
                idle.llm.shutdown()
                if idle.link is not None:
                    idle.link.unlink(missing_ok=True)


def forks() -> multiprocessing.context.ForkServerContext:
    """Half of a start is loading modules: processes are forked from one that has them. Cores that are not lent start as
    they do for users."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vllm.v1.engine.async_llm", "inference.vllm.worker", "inference.vllm.connector"])
    return context


class LentCore(VllmCore):
    """A core whose processes outlive the engine that it serves."""

    def __init__(self, options: VllmOptions, cores: Cores) -> None:
        super().__init__(options)
        self._cores = cores
        self._link: Path | None = None

    @property
    def _idle(self) -> list[Idle]:
        """Those of the same make."""
        of = self.options
        rank = 0 if self._adapter is None else self._adapter.rank
        sizes = f"{of.slots} {of.device_blocks} {of.block_tokens} {of.step_target_ms}"
        make = f"{of.model_path} {sizes} {of.engine_args} {rank}"
        return self._cores.idle.setdefault(make, [])

    async def start(self, context_window: int, connector_folder: str | None, adapter: Adapter | None = None) -> None:
        """The connector goes on reporting to the folder that it was started with: a link leads to the present one."""
        self._adapter = adapter
        if self._idle:
            self._llm, self._link, self.kv_shape = self._idle.pop()
            async with asyncio.timeout(60):
                while not await self.reset():  # noqa: ASYNC110 - nobody rings for an engine's own books
                    await asyncio.sleep(0)
            if adapter is not None:
                await self._llm.remove_lora(1)
                await self._load_adapter(self._llm)
        if self._link is not None and connector_folder is not None:
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(connector_folder)
        elif self._llm is None:
            if connector_folder is not None:
                self._link = Path(tempfile.gettempdir()) / f"sessile-lent-{os.urandom(4).hex()}"
                self._link.symlink_to(connector_folder)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("vllm.v1.engine.utils.get_mp_context", forks)
                await super().start(context_window, None if self._link is None else str(self._link), adapter)

    async def close(self) -> None:
        if self._link is not None and self.kv_shape is None:  # its start was refused
            await super().close()
            self._link.unlink(missing_ok=True)
        llm, self._llm = self._llm, None
        if llm is not None:
            self._idle.append(Idle(llm, self._link, self.kv_shape))

    async def reap(self) -> None:
        await self.close()  # a death is made up where a core is lent: it goes on


class VllmWorld(World):
    name = "vllm"
    block_tokens = BLOCK_TOKENS
    cores = Cores()

    def __init__(self, folder: Path, **always: Any) -> None:
        """`always`: options of every engine of this world."""
        super().__init__(folder)
        self.always = always
        self.staging = Path(tempfile.mkdtemp(prefix="sessile-vllm-"))  # short: a socket's path has 107 characters

    def _make(self, waiting_max: int) -> Engine:
        return self.make(waiting_max=waiting_max)

    def make(self, **others: Any) -> VllmEngine:
        options = vllm_options(self.folder, **({"staging_folder": self.staging} | self.always | others))
        return VllmEngine(options, core=LentCore(options, self.cores), cost=AlwaysRestores())

    async def close(self) -> None:
        await super().close()
        assert list(self.staging.iterdir()) == [], "an engine left something in memory"
        self.staging.rmdir()


class SeeingVllmWorld(VllmWorld):
    """A tiny model that sees images, written once for all tests of a process, so that they share its cores."""

    _models: tempfile.TemporaryDirectory[str] | None = None

    def __init__(self, folder: Path, **always: Any) -> None:
        if SeeingVllmWorld._models is None:
            SeeingVllmWorld._models = tempfile.TemporaryDirectory(prefix="sessile-seeing-")
            write_tiny_seeing_folder(self.model_path, FAMILIES["chatml"], SPECIALS)
        super().__init__(folder, **{"model_path": self.model_path, **always})

    @property
    def model_path(self) -> Path:
        assert self._models is not None
        return Path(self._models.name) / "tiny"


async def start(world: VllmWorld, **options: Any) -> VllmEngine:
    """One more engine that is closed with its world."""
    engine = world.make(**options)
    world._engines.append(engine)
    await engine.start()
    return engine


def offload_of(engine: VllmEngine) -> KvOffload:
    """What keeps an engine's KV; it has one while vLLM runs."""
    assert engine._offload is not None
    return engine._offload


async def settled(engine: VllmEngine) -> None:
    """Everything that ran is in the tiers' hands, and they have copied it down."""
    assert engine._offload is not None
    await engine._offload.settled()
    await engine._offload.tiers.host.settle()
