"""Authentication: API keys, tokens of issuers, tickets, and which web pages and host names may connect.

Never decides what a principal may do (`sessions.model.authorization`) and never holds a key itself, only its digest.
Start at `authenticator`: a credential becomes a principal there; `api_key_cache`, `jwt_issuers` and `tickets` are what
it consults, `auth_throttle` bounds failures, `connection_shares` connections, `origins` checks Host and Origin.
"""
