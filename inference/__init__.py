"""Tokens and KV bytes: engines behind one port, their tokenizers, and the tiers that KV travels through; moderation."""

from inference.factory import audit_policies, make_engine, open_filters

__all__ = ["audit_policies", "make_engine", "open_filters"]
