"""Our connector in a vLLM whose worker dies in a chosen phase of its third save, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from inference.vllm import block_copier as block_copier_module
from inference.vllm.async_llm import VllmCore
from inference.vllm.connector import SessileConnector
from inference.vllm.worker_events import BlocksSaved

WAY: Final = "dies_at"  # in the connector's settings: a file with the phase, which the first worker takes away
PHASES: Final = ("nothing written", "half a block", "no checksums", "not reported", "end not told")
block_copier: Any = block_copier_module  # its functions are replaced
SAVE: Final = 3  # those before it are whole


class DyingConnector(SessileConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        way = Path(self._kv_transfer_config.get_from_extra_config(WAY, ""))
        if self._copier is not None and way.is_file():
            _arm(self._copier, way.read_text())
            way.unlink()


class DyingCore(VllmCore):
    """A core whose first workers die at `phase`; those of a restart live."""

    def __init__(self, options: Any, way: Path, phase: str) -> None:
        super().__init__(options)
        self._way = way
        way.write_text(phase)

    def _arguments(self, *given: Any) -> dict[str, Any]:
        arguments = super()._arguments(*given)
        config = arguments["kv_transfer_config"]
        config.kv_connector, config.kv_connector_module_path = "DyingConnector", __name__
        config.kv_connector_extra_config[WAY] = str(self._way)
        return arguments


def _arm(copier: Any, phase: str) -> None:
    """Replaces what comes right behind the phase, in this process alone."""
    write, saves = copier._write, 0

    def counted(saving: Any, *rest: Any) -> None:
        nonlocal saves
        saves += bool(saving.order.block_ids)
        if saves == SAVE and phase == "nothing written":
            _die()
        write(saving, *rest)

    def half(file: int, data: memoryview, offset: int) -> None:
        if saves == SAVE:
            os.pwrite(file, data[: len(data) // 2], offset)
            _die()
        write_all(file, data, offset)

    def unless(due: Callable[[Any], bool], call: Callable[..., None]) -> Callable[..., None]:
        def either(first: Any, *rest: Any) -> None:
            _die() if due(first) else call(first, *rest)

        return either

    def is_end(report: Any) -> bool:
        return isinstance(report, BlocksSaved) and report.closed

    write_all = block_copier._write_all
    copier._write = counted
    match phase:
        case "half a block":
            block_copier._write_all = half
        case "no checksums":
            block_copier.add_checksums = unless(lambda _: saves == SAVE, block_copier.add_checksums)
        case "not reported":
            copier.sender.mention = unless(lambda _: saves == SAVE, copier.sender.mention)
        case "end not told":
            copier.sender.send = unless(is_end, copier.sender.send)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
