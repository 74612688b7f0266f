"""The index of vector stores: chunks of documents with their vectors and words, on SQLite and on PostgreSQL.

A database of its own beside the journal (a file, or a schema of the same PostgreSQL), because a search goes over much
and an append must not wait for it. Texts, names and errors are sealed with the tenant's key; vectors, attributes and
keyed hashes of words stand in the clear. Never computes a vector. Start with `index`, then `opening`; the drivers
are in `databases` and `postgres`.
"""

from persistence.passages.opening import open_passages

__all__ = ["open_passages"]
