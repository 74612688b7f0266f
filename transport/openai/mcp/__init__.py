"""OpenAI's `mcp` tool type on the log: what a request says of servers, how calls are shown, how approvals are answered.

In the log a call of an MCP server's tool is a function call and its output, as of every tool that the server carries
out. It never connects to anything. Start with `shown`.
"""
