"""KV outside the device: one envelope for every engine, and the bounded tiers that it travels through."""
