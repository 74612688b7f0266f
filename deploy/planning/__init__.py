"""Answers "how many GPUs": from a model's config.json, a workload and targets to replicas, hit rates and cost.

Pure: it reads no file but its own calibration, and never asks an engine. `model_shape` counts, `roofline` gives ideal
times, `calibration` measured ones, `queueing` waiting and hit rates, `replica` one replica under load. Start with
`planner.make_plan`.
"""
