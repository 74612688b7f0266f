"""The soak: a real cluster under random faults, unattended, with an outside witness and one report.

Start at `run`; `faults` breaks things, `witness` holds what clients saw against the journal, `monitor` takes samples.
"""
