"""The tools that the server carries out: which a tenant has, from the tools file, and how a call of one is sent.

Behind the port `ServerTools`. It never knows sessions' rules: what stands in the log before a call is sent, and what
is sent again after a crash, is `sessions.actor.tool_runner`'s. Start with `opening`, then `http_tools`.
"""

from inference.tools.opening import open_added_tool_check, open_tools

__all__ = ["open_added_tool_check", "open_tools"]
