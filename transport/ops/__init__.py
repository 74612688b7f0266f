"""Operations: metrics and traces, the audit log of a gateway, the operator API, process tuning.

Never changes a session but by the two operator actions (drain, hand off), and shows no conversation.
Start at `metric_sources` (what is measured) and `operator_api`; `prometheus`, `metrics_server` and `otlp` expose,
`audit_writer` records what no session's append can carry.
"""
