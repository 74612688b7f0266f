"""Compresses a WebSocket's frames for the client that asks for it: `permessage-deflate`.

Every browser offers the extension, and it costs memory for as long as the connection lives, so the offer alone is not
taken: `?compress=deflate` in the address asks. What the server sends is one stream (frames of one answer differ in a
few bytes); what clients send is compressed message by message, so that nothing is kept for it.

A few bytes can stand for megabytes, which are inflated and parsed before anybody can say that they are nothing: over
its life a connection may bring `INFLATION_MAX` times what it sends, and `INFLATED_AHEAD_BYTES` more.

Who can have text of theirs put beside a secret and sees the lengths on the wire can guess at the secret (CRIME): this
is for links where bytes are dear, and never the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit

from websockets.extensions import Extension
from websockets.extensions.permessage_deflate import PerMessageDeflate, ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.typing import ExtensionParameter

# An answer's last events repeat its text: a smaller window has forgotten it. 144 KiB a connection.
WINDOW_BITS: Final = 15
DEFLATING_MAX: Final = 1024  # compressing connections of a process; further ones are not compressed
DEFLATED_BYTES_MAX: Final = 64 * 1024  # larger frames are not compressed: it would hold up everybody else
INFLATION_MAX: Final = 32  # people's text and JSON inflates 3 to 15 times
INFLATED_AHEAD_BYTES: Final = 8 * 1024 * 1024  # two messages of the largest size, whatever they inflate from


class BoundedDeflate(PerMessageDeflate):
    """The compression of one connection. A message that inflates beyond the connection's bound closes it with 1009."""

    _ahead = INFLATED_AHEAD_BYTES

    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:
        room = min(self._ahead + INFLATION_MAX * len(frame.data), INFLATED_AHEAD_BYTES)
        decoded = super().decode(frame, max_size=max(1, room if max_size is None else min(room, max_size)))
        if frame.rsv1 or self.decode_cont_data:
            self._ahead = max(0, room - len(decoded.data))
        return decoded


class BoundedDeflateFactory(ServerPerMessageDeflateFactory):
    """Agrees on compression with a client, with a bound on how far its messages inflate."""

    def process_request_params(
        self, params: Sequence[ExtensionParameter], accepted_extensions: Sequence[Extension]
    ) -> tuple[list[ExtensionParameter], PerMessageDeflate]:
        answer, agreed = super().process_request_params(params, accepted_extensions)
        return answer, BoundedDeflate(
            agreed.remote_no_context_takeover,
            agreed.local_no_context_takeover,
            agreed.remote_max_window_bits,
            agreed.local_max_window_bits,
            agreed.compress_settings,
        )


DEFLATE: Final = BoundedDeflateFactory(
    client_no_context_takeover=True,
    server_max_window_bits=WINDOW_BITS,
    compress_settings={"level": 6, "memLevel": 5},
)


def wants_deflate(path: str) -> bool:
    """Returns whether the path of a handshake has `compress=deflate`."""
    return parse_qs(urlsplit(path).query).get("compress") == ["deflate"]


def deflated(frame: bytes, extensions: Sequence[Extension]) -> bytes:
    """Returns a whole unmasked frame as the connection's extensions write it; a large one unchanged."""
    length = frame[1]
    start = 2 if length < 126 else 4 if length == 126 else 10
    if len(frame) - start > DEFLATED_BYTES_MAX:
        return frame
    return Frame(Opcode(frame[0] & 0x0F), frame[start:]).serialize(mask=False, extensions=extensions)
