"""Node for tests of JavaScript: what `clients/typescript` has locked, installed where it is not yet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENT: Final = ROOT / "clients" / "typescript"
WITH_NODE: Final = str(ROOT / "deploy" / "with_node.sh")


async def node_modules() -> None:
    """OpenAI's SDK and the others are in the client's `node_modules`."""
    if not (CLIENT / "node_modules" / "openai").is_dir():
        npm = await asyncio.create_subprocess_exec(WITH_NODE, "npm", "ci", "--no-audit", "--no-fund", cwd=CLIENT)
        assert await npm.wait() == 0
