"""The llama.cpp engine, through xllamacpp: any GGUF model, on the CPU or a GPU, in this process."""

from inference.llama.engine import LlamaEngine
from inference.llama.options import LlamaOptions

__all__ = ["LlamaEngine", "LlamaOptions"]
