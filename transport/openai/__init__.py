"""OpenAI's HTTP API on sessions: requests become commands, and the log's events take OpenAI's shapes.

    request ─> parse_request (items, sampling) ─> turn_starter (which session) ─> turn.create ─> log_cursor ─> chunks

Never keeps a conversation: what a client resends is found again by `transport.history_index`. Start at
`turn_starter`, then `chat` and `responses` (reading an answer), `chat_render` and `responses_render` (its shapes); the
schemas are `*_models`.
"""
