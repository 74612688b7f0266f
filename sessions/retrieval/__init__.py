"""Retrieval: the vocabulary, the rules and the ports of embeddings, vector stores and searches in them.

Never runs a model, opens a database or reads a clock. Start with `embedding` (turning texts into vectors), then
`vector_stores` (what is stored, and the port of its index); `chunking` cuts documents, `ranking` puts hits in order.
"""
