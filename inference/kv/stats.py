"""What tiers hold and may hold, by name, for whoever shows it."""

from __future__ import annotations

from inference.kv.tiers import Tiers


def tier_stats(tiers: Tiers) -> dict[str, float]:
    """Bytes and bounds of each tier, and what it was measured to take."""
    stats = {
        "host_bytes": float(tiers.host.bytes),
        "host_bytes_max": float(tiers.host.bytes_max),
        "host_snapshots": float(len(tiers.host)),
    }
    for tier in tiers.cold:
        stats[f"{tier.name}_bytes"] = float(tier.bytes)
        stats[f"{tier.name}_bytes_max"] = float(tier.bytes_max)
    return stats | tiers.cost.described()
