"""The HTTP routes, one file for each family of paths: a table `routes` with its handlers at module level.

Never decides about sessions: a handler authenticates (`principal_of`), calls the gateway or `transport.openai`, and
answers. Start at `sessions`; a new route needs an entry in the authorisation matrix of the tests.
"""
