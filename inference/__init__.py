"""Tokens and KV bytes: engines behind one port, their tokenizers, and the tiers that KV travels through."""
