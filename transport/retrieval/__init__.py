"""Retrieval at the edge: embeddings, re-ranking and vector stores, within the limits and filters of their tenant.

Runs no model and opens no database: the ports of `sessions.retrieval` do. Start with `metering`.
"""
