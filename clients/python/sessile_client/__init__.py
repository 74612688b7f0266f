"""Python client of Sessile: chat sessions that survive dropped connections and restarted servers.

::

    async with Client("ws://127.0.0.1:8080/v1/ws", api_key=KEY) as client:
        session = await client.create_session(title="First words")
        async for text in session.send("Hello!"):
            print(text, end="", flush=True)

``sessile_client.sync`` is the same without async, ``sessile_client.terminal`` a chat in the terminal.
"""

from ._fields import Changes, Knowledge, MessageOptions, Sampling, Settings, TurnOptions
from ._items import Item, ResponseState, Review
from ._notices import Disconnected, GoingAway, Link, Ready, Stopped, Warned
from ._policy import Limits
from ._track import Event, Phase, Snapshot
from ._view import View
from .bot import Bot, Delivery, FileInbox, Inbox, MemoryInbox, Screen
from .client import Client, SessionInfo
from .errors import (
    Busy,
    CommandTimeout,
    Conflict,
    ConnectionStopped,
    Forbidden,
    InvalidRequest,
    Lost,
    NotFound,
    RateLimited,
    ResponseFailed,
    ServerError,
    SessileError,
    SessionGone,
    TooManyCommands,
    Unauthorized,
    Unavailable,
    WireError,
)
from .response import Response, ToolAnswer
from .session import UNSET, Session
from .store import FileStore, MemoryStore, Position, PositionStore

__version__ = "0.2.0"

__all__ = [
    "UNSET",
    "Bot",
    "Busy",
    "Changes",
    "Client",
    "CommandTimeout",
    "Conflict",
    "ConnectionStopped",
    "Delivery",
    "Disconnected",
    "Event",
    "FileInbox",
    "FileStore",
    "Forbidden",
    "GoingAway",
    "Inbox",
    "InvalidRequest",
    "Item",
    "Knowledge",
    "Limits",
    "Link",
    "Lost",
    "MemoryInbox",
    "MemoryStore",
    "MessageOptions",
    "NotFound",
    "Phase",
    "Position",
    "PositionStore",
    "RateLimited",
    "Ready",
    "Response",
    "ResponseFailed",
    "ResponseState",
    "Review",
    "Sampling",
    "Screen",
    "ServerError",
    "SessileError",
    "Session",
    "SessionGone",
    "SessionInfo",
    "Settings",
    "Snapshot",
    "Stopped",
    "TooManyCommands",
    "ToolAnswer",
    "TurnOptions",
    "Unauthorized",
    "Unavailable",
    "View",
    "Warned",
    "WireError",
]
