"""vLLM behind the `Engine` port: the engine of production, with KV that follows the conversation.

Nothing is imported here: the modules that need vLLM itself (`engine`, `core`, `sampling`, `connector`, `mover`) load
where it is installed, the others anywhere.
"""
