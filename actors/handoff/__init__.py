"""Moves live sessions between replicas: `source` and `target` are the two sides of one hand-off.

Never leaves a session with two owners or none: the journal's fence decides. `drain`, `rebalance`, `engine_failover` and
`operator_handoff` decide when, `planner` where to. Start with `source`.
"""
