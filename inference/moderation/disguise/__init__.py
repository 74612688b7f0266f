"""Disguises of words beyond look-alikes and markup: many-signed letters, respelt words, and further encodings.

It knows nothing of policies, verdicts or models, and keeps no text. `inference.moderation.scan` and
`inference.moderation.input_filter` use it, for whole texts only. Start with `lattice`.
"""
