"""Runs code that models write: CPython in a sandbox of the operating system.

Nothing here trusts what it runs: the server talks to a supervisor that holds no secret, and reads back bytes, never
objects. It never knows sessions or the log. Start with `code_tools`, then `sandbox_pool` and `supervisor`.
"""
