"""A phone on a train: it goes through tunnels, is put to sleep and woken, and shows one text without a seam.

    python docs/examples/phone.py --url ws://127.0.0.1:8080/v1/ws --state FOLDER

The position in every conversation is kept in a folder. Kill this program in mid-answer and start it again: it shows
what it knew, goes on in the same answer and exits when that is complete. What the network does it only remarks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from sessile_client import Client, Disconnected, FileStore, Limits, Ready


async def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--url", default="ws://127.0.0.1:8080/v1/ws")
    options.add_argument("--key")
    options.add_argument("--state", type=Path, default=Path.home() / ".cache" / "sessile-phone")
    options.add_argument("--say", default="Tell me everything.")
    given = options.parse_args()

    def on_link(change: object) -> None:
        if isinstance(change, Disconnected):
            print(f"[tunnel: {change.reason or change.code}]", file=sys.stderr, flush=True)
        elif isinstance(change, Ready):
            print("[connected]", file=sys.stderr, flush=True)

    given.state.mkdir(parents=True, exist_ok=True)
    known = given.state / "session"
    client = Client(
        given.url,
        api_key=given.key,
        store=FileStore(given.state / "positions"),
        on_link=on_link,
        limits=Limits(backoff_first_s=0.1, backoff_max_s=2.0),
    )
    async with client:
        if known.exists():
            session = await client.session(known.read_text().strip())
        else:
            session = await client.create_session(title="On the train")
            known.write_text(session.id)
        # The id makes the message one, whether this is the first start or the tenth.
        response = session.send(given.say, command_id=f"{session.id}-first")
        async for piece in response:
            print(piece, end="", flush=True)
        print(f"\n[{response.status}]", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main())
