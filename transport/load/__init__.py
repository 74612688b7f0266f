"""Puts a load on an OpenAI-compatible server and measures what its users would feel: TTFT, TPOT, goodput.

A client like any other: it never imports what serves, so that it measures llama-server and vLLM as it measures us.
Start at `runner.LoadRunner`; `workload` says what is sent, `stream_client` sends it, `measurements` counts, and
`live_table`, `html_report` and `load_exposition` show it. The command is `transport/cli/load.py`.
"""
