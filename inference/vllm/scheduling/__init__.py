"""What runs in vLLM's scheduler beside the KV connector: our scheduler classes, and what they do to a request.

Start with `scheduler`, whose `make_scheduler` is vLLM's `scheduler_cls`; `grammar_replay` takes the grammar of an
answer that is continued to where it is, `block_salts` lets sessions share their opening's blocks, `step_planner` bounds
steps by time. It never decides who runs: that is vLLM's, and `concurrency_gate`'s before it.
"""
