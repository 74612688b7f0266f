"""Tokens and KV bytes: engines behind one port, their tokenizers, and the tiers that KV travels through; moderation."""

from inference.factory import make_engine, open_filters

__all__ = ["make_engine", "open_filters"]
