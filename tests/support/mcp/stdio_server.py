"""An MCP server over standard streams, for tests: `python -m tests.support.mcp.stdio_server STATE_FOLDER`.

What it was asked, and what was cancelled, it writes into the folder, a line each: tests read that. A file `description`
there is what `weather` says that it is for; one named `quick` lets `slow` end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import anyio

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

FOLDER: Final = Path(sys.argv[1])
server = MCPServer("tests")


def note(what: str) -> None:
    with (FOLDER / "asked").open("a") as file:
        file.write(what + "\n")


def _description() -> str:
    changed = FOLDER / "description"
    return changed.read_text() if changed.exists() else "The weather in a city."


@server.tool(description=_description(), annotations=ToolAnnotations(read_only_hint=True))
def weather(city: str) -> str:
    note(f"weather {city}")
    return f"18 degrees in {city}"


@server.tool(description="Books a table.")
def book(city: str) -> str:
    note(f"book {city}")
    return f"booked in {city}"


@server.tool(description="Takes its time, and says how far it is.")
async def slow(city: str, ctx: Context[Any, Any]) -> str:
    note(f"slow {city}")
    try:
        await ctx.report_progress(1, 4, f"looking at {city}")
        if not (FOLDER / "quick").exists():
            await anyio.Event().wait()
        await ctx.report_progress(4, 4, "there")
    except anyio.get_cancelled_exc_class():
        note(f"cancelled {city}")
        raise
    return "done"


if __name__ == "__main__":
    server.run("stdio")
