"""Disguises of words beyond look-alikes and markup: many-signed letters, respelt and spelled-out words, pieces that are
put together, simple ciphers, and further encodings.

It knows nothing of policies, verdicts or models, and keeps no text. `inference.moderation.scan` and
`inference.moderation.readings` use it, for whole texts only. Start with `assembled`.
"""
