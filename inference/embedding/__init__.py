"""Embedding models: texts to vectors, and documents ranked by a query, behind the port of `sessions.retrieval`.

The model that ships in a package runs in processes of its own, niced, so that answers decode as if it were not there;
others are servers that speak OpenAI's API. Never stores a text or a vector. Start with `opening` (what the settings
name), then `catalog` (models by name) and `pool` (who is next); `worker` is the process.
"""

from inference.embedding.opening import open_embedder

__all__ = ["open_embedder"]
