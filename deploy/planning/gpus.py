"""GPU kinds with their published figures: memory, bandwidth, arithmetic, links.

Source: NVIDIA's data sheets (dense, without sparsity), as `aiconfigurator-core` 0.12 lists them too. Prices are a
default to be replaced by one's own (`--gpu-hour`): list prices of rented machines, rounded, 2026.
"""

from __future__ import annotations

from typing import Final

import msgspec


class GpuKind(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, bytes a second, operations a second; links in one direction."""

    name: str
    memory: float
    bandwidth: float
    bf16: float
    fp8: float
    fp4: float
    per_node: int
    link: float  # inside a node, or a rack where NVLink spans it
    network: float
    hour: float  # price of one GPU-hour

    def flops(self, weight_bytes: float) -> float:
        """What is narrower than this GPU computes in is widened first."""
        return self.bf16 if weight_bytes > 1.5 else self.fp8 if weight_bytes > 0.8 else self.fp4


def _gpu(
    name: str,
    memory_gib: float,
    tb_s: float,
    tflops: tuple[float, float, float],
    links: tuple[int, float, float],
    hour: float,
) -> GpuKind:
    bf16, fp8, fp4 = (each * 1e12 for each in tflops)
    per_node, link, network = links
    return GpuKind(
        name=name,
        memory=memory_gib * 2**30,
        bandwidth=tb_s * 1e12,
        bf16=bf16,
        fp8=fp8,
        fp4=fp4,
        per_node=per_node,
        link=link * 1e9,
        network=network * 1e9,
        hour=hour,
    )


GPUS: Final = {
    each.name: each
    for each in (
        _gpu("a100", 80, 2.039, (312, 312, 312), (8, 300, 25), 1.8),
        _gpu("l4", 24, 0.300, (121, 242, 242), (8, 32, 25), 0.7),
        _gpu("l40s", 45, 0.864, (362, 733, 733), (8, 32, 50), 1.2),
        _gpu("h100", 80, 3.35, (989, 1978, 1978), (8, 450, 50), 3.0),
        _gpu("h200", 141, 4.8, (989, 1978, 1978), (8, 450, 50), 3.8),
        _gpu("b200", 180, 7.7, (2250, 4500, 9000), (8, 900, 100), 5.5),
        _gpu("b300", 268, 7.75, (2250, 4500, 13500), (8, 900, 100), 6.5),
        _gpu("gb200", 185, 8.0, (2500, 5000, 10000), (72, 900, 100), 6.0),
        _gpu("gb300", 277, 8.0, (2500, 5000, 15000), (72, 900, 100), 7.0),
        _gpu("rtx-pro-6000", 95, 1.792, (503, 1007, 2015), (8, 64, 50), 1.8),
    )
}
