"""Blocks through a stage and back, on a CPU, on a made-up GPU, and on a real one where there is one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from inference.vllm.kv_device import BlockLayers, CpuDevice, CudaDevice, KvDevice, device_of
from tests.support.engines.made_up_device import MadeUpDevice

pytestmark = pytest.mark.vllm

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
DEVICES = ["cpu", "made up", pytest.param("cuda", marks=NO_GPU)]
BLOCKS = 8


def caches(place: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        f"layer{layer}": torch.randn((BLOCKS, 2, 4, 8), generator=generator).to("cuda" if place == "cuda" else "cpu")
        for layer in range(3)
    }


@pytest.mark.parametrize("place", DEVICES)
def test_blocks_go_out_and_come_back_elsewhere(place: str) -> None:
    held = caches(place)
    made_up: KvDevice | None = MadeUpDevice() if place == "made up" else None
    layers = BlockLayers(held, BLOCKS, made_up)
    stage = layers.device.new_stage(2 * layers.block_bytes)
    part = stage.view(2, layers.block_bytes)
    with layers.device.thread():
        layers.device.follow(layers.device.mark())
        layers.gather([5, 1], part)
        assert bytes(part[1].numpy())[: 4 * 64] == held["layer0"][1].cpu().numpy().tobytes()
        layers.scatter(part, [0, 7])
    for tensor in held.values():
        assert torch.equal(tensor[0], tensor[5]) and torch.equal(tensor[7], tensor[1])
    if isinstance(made_up, MadeUpDevice):
        assert made_up.faults == [] and made_up.outstanding == 0 and made_up.copies == 2


def test_a_thread_that_copies_has_no_team_of_threads_beside_the_forward_pass() -> None:
    mine = torch.get_num_threads()
    if mine == 1:
        pytest.skip("one core: there is nothing to see")
    seen: list[int] = []

    def copy() -> None:
        with CpuDevice().thread():
            seen.append(torch.get_num_threads())

    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()
    assert seen == [1] and torch.get_num_threads() == mine


def test_the_device_is_that_of_the_tensors() -> None:
    assert isinstance(device_of(torch.device("cpu")), CpuDevice)
    assert isinstance(device_of(torch.device("cuda")), CudaDevice)
    with pytest.raises(ValueError, match="for 9 blocks"):
        BlockLayers(caches("cpu"), 9)
