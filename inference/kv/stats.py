"""What tiers hold and may hold, by name, for whoever shows it."""

from __future__ import annotations

from inference.kv.tiers import Tiers


def tier_stats(tiers: Tiers) -> dict[str, float]:
    """Bytes and bounds of each tier, and what it was measured to take."""
    told = {
        "host_bytes": float(tiers.host_bytes),
        "host_bytes_max": float(tiers.host_bytes_max),
        "host_snapshots": float(len(tiers.host)),
    }
    for tier in tiers.cold:
        told[f"{tier.name}_bytes"] = float(tier.bytes)
        told[f"{tier.name}_bytes_max"] = float(tier.bytes_max)
    return told | tiers.cost.described()
