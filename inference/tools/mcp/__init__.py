"""MCP servers whose tools the server carries out: found, looked through, called, and kept running.

Everything that such a server says is untrusted: names, descriptions, schemas, results, progress, sizes. It never knows
sessions' rules; HTTP functions are its neighbours (`inference.tools.http_tools`). Start with `mcp_tools`, then
`connection` (one server) and `catalogue` (what is taken over of what it lists).
"""
