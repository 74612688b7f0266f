"""Rate and quota limiters (`sessions.limits.Limiter`): in memory, on Valkey, and one for when the Valkey is away.

Never decides what a command costs (`transport.quotas` does). Start with `memory`; `limits.lua` is the same arithmetic;
`settlement` settles reservations where responses end.
"""
