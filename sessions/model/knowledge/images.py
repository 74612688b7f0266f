"""The result of decoding an image: one that every engine and provider takes, and that tells nothing but its pixels."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from sessions.model.errors import BadInput, TooLarge

IMAGE_BYTES_MAX: Final = 20 << 20  # of an image as it was sent
PIXELS_MAX: Final = 25_000_000
SOURCE_EDGE_MAX: Final = 16_384
DECODED_BYTES_MAX: Final = 400 << 10
EDGE_MAX: Final = 1_568  # the longest edge of a decoded image, in pixels, if the caller names none


class DecodedImage(msgspec.Struct, frozen=True):
    """An image that was decoded and encoded anew: upright, in sRGB, opaque, without metadata, of `DECODED_BYTES_MAX` at
    most. `data` is the encoded image, of `width` times `height` pixels."""

    media_type: Literal["image/jpeg", "image/png"]
    data: bytes
    width: int
    height: int


def unsupported_image(what: str) -> BadInput:
    return BadInput("image_type_unsupported", f"This image cannot be read: {what}.")


def unreadable_image(what: str) -> BadInput:
    return BadInput("image_unreadable", f"This image cannot be read: {what}.")


def too_complex_image(what: str) -> TooLarge:
    return TooLarge("image_too_complex", f"This image cannot be read within the limits of this server: {what}.")
