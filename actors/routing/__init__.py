"""A gateway's way to sessions on replicas: commands (`router`) and events (`subscriptions`).

Never hosts an actor and stores nothing: any gateway may die. Start with `router`; `route_table` decides where a command
goes, and which other replica takes over a session whose owner is suspected.
"""
