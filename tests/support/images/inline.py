"""Images decoded in this process, for tests of what is behind and before that."""

from __future__ import annotations

from inference.images.decoding import decode_image
from sessions.model.errors import BadInput
from sessions.model.knowledge.images import DECODED_BYTES_MAX, EDGE_MAX, DecodedImage, unreadable_image


class InlineImages:
    """The ImageDecoder port, without a sandbox."""

    def __init__(self) -> None:
        self.read = 0

    async def decode(
        self, content: bytes, *, edge_max: int = EDGE_MAX, bytes_max: int = DECODED_BYTES_MAX
    ) -> DecodedImage:
        self.read += 1
        try:
            return decode_image(content, edge_max, bytes_max)
        except BadInput:
            raise
        except Exception as error:
            raise unreadable_image("it is damaged") from error

    def known(self, sha256: str, *, edge_max: int, bytes_max: int) -> DecodedImage | None:
        return None
