"""The vLLM engine: the engine of production, with KV that follows the conversation.

It never patches vLLM: it uses its public front half and its KV connector interface. Start with `engine`; `async_llm`
runs vLLM, `images` shows it images, `offload` plans each run's KV, `connector` and `block_copier` carry it out in
vLLM's processes and report through `worker_events`; `scheduling` runs beside them in its scheduler; `supervisor`
restarts a vLLM that died.
Nothing is imported here: modules that need vLLM (`engine`, `async_llm`, `images`, `sampling`, `connector`,
`block_copier`, `worker`, `scheduling.scheduler`) load where it is installed, the others anywhere.
"""
