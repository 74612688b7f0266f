"""A cluster of real processes under faults, its load, and the verdict on what its readers were sent."""
