"""Options of the remote engine."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from inference.options import bad_option, check_least

ENGINE = "remote"


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of remote servers. `tokenizer` is the model's Hugging Face folder (without its weights), or its GGUF file
    if the servers are llama-server. With `chat_model`, the name of a provider's model, no tokenizer is needed."""

    urls: tuple[str, ...]
    tokenizer: Path = Path()
    chat_model: str = ""
    key: str = ""  # sent as a bearer token
    model_name: str | None = None  # the public name; None: the servers' own
    model_aliases: tuple[str, ...] = ()
    chat_template: str | None = None  # None: the model's own; "chatml"; or the text of a Jinja template
    context_window: int = 0  # 0: the smallest of the servers'
    images: bool | None = None  # whether the chat model sees them; None: as its provider says
    slots: int = 4
    waiting_max: int = 64
    away_s: float = 5.0  # how many seconds a server that failed gets no requests
    silence_s: float = 15.0  # a server that says nothing for so long must answer a probe
    answer_s: float = 10.0  # ... within this time, as any short question

    def __post_init__(self) -> None:
        check_least(self, ENGINE, 1, "slots")
        check_least(self, ENGINE, 0, "waiting_max", "context_window")
        if not self.urls:
            raise bad_option(ENGINE, "engine_url", "the address of a server: http://HOST:PORT")
        if not all(map(_is_address, self.urls)):
            raise bad_option(ENGINE, "engine_url", "http://HOST:PORT or https://HOST, with a path if there is one")


def _is_address(url: str) -> bool:
    if not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.port != 0 and bool(parts.hostname)
    except ValueError:  # of the port, or of brackets
        return False
    return known and not (parts.query or parts.fragment or parts.username)
