"""`/v1/tools`: what administrators see of MCP servers' tools, and agree to.

It never calls a tool nor connects to a server: what replicas found out stands in the store. Start with `routes`.
"""
