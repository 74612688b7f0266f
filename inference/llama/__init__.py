"""The llama.cpp engine, through xllamacpp: any GGUF model, on the CPU or a GPU, in this process.

It never tokenises a conversation twice and never mixes sessions in a slot. Start with `engine`; `scheduling` gives out
slots (`slots`), `prefill` computes prompts, `slot_kv` saves and restores what slots hold, `eager_save`
decides when an idle slot is saved before its session leaves, `completion` reads llama-server's stream over the lean client in `http`. `gguf` and `vocabulary` read the model file.
"""

from inference.llama.engine import LlamaEngine
from inference.llama.options import LlamaOptions

__all__ = ["LlamaEngine", "LlamaOptions"]
