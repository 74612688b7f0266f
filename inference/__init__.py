"""Tokens and KV bytes: engines behind one port, their tokenizers, and the tiers that KV travels through."""

from inference.factory import make_engine

__all__ = ["make_engine"]
