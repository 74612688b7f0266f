"""The session protocol without I/O: frames, decoding, legal moves, flow control, replay of retracted text.

Never awaits, reads a clock or logs (import-linter): shells pass bytes and the time in and carry out what is returned.
Start at `connection`; `frames` has the messages, `decoding` what is refused, `flow_control` the window, `delta_merge`
and `retraction` what a reader is shown of the log.
"""
