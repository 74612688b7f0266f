"""Measurements: each module is a command (`python -m bench.NAME`) that prints hardware, commit and its figures."""
