"""MCP servers that tests run, written with the official package."""
