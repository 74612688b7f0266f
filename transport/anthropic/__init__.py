"""Anthropic's Messages API, `/v1/messages`, on the turns that OpenAI's doors use.

A request becomes a `TurnInput` (`request`), and the log of its answer Anthropic's objects and events (`answer`). What
makes a session of a resent history, and an answer of a turn, is `transport.openai`'s.
"""
