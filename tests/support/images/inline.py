"""Images decoded in this process, for tests of what is behind and before that."""

from __future__ import annotations

from inference.images.decoding import decode_image
from sessions.model.errors import BadInput
from sessions.model.knowledge.images import EDGE_MAX, DecodedImage, unreadable_image


class InlineImages:
    """The ImageDecoder port, without a sandbox."""

    def __init__(self) -> None:
        self.read = 0

    async def decode(self, content: bytes, *, edge_max: int = EDGE_MAX) -> DecodedImage:
        self.read += 1
        try:
            return decode_image(content, edge_max)
        except BadInput:
            raise
        except Exception as error:
            raise unreadable_image("it is damaged") from error
