"""Images made for tests: patterns in every mode, files of every format, PNGs chunk by chunk."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any, Final

from PIL import Image

PNG_MAGIC: Final = b"\x89PNG\r\n\x1a\n"


def a_pattern(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    """An image in which neighbours differ, and no two rows are alike."""
    width, height = size
    pixels = bytes((x * 5 + y * 3 + band * 90) % 256 for y in range(height) for x in range(width) for band in range(4))
    image = Image.frombytes("RGBA", size, pixels)
    if mode == "I;16":
        return Image.frombytes("I;16", size, b"".join(struct.pack("<H", 257 * value) for value in pixels[::4]))
    if mode in ("RGBA", "LA"):
        return image.convert(mode)
    return image.convert("RGB").convert(mode)


def noise(size: tuple[int, int], seed: int = 1) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def opened(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def a_png(width: int, height: int, pixels: bytes, *chunks: bytes, bits: int = 8, colours: int = 2) -> bytes:
    """A PNG with any header before any pixels, whether they fit or not."""
    header = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"".join(
        (PNG_MAGIC, chunk(b"IHDR", header), *chunks, chunk(b"IDAT", zlib.compress(pixels, 9)), chunk(b"IEND", b""))
    )


def a_gif(width: int, height: int, frames: int) -> bytes:
    """A GIF of so many frames of one pixel each."""
    frame = b"!\xf9\x04\x00\x01\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02L\x01\x00"
    head = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\x00\x00\xff\x00\x00\x00\xff\x00"
    return head + frame * frames + b";"
