"""Hostile images, made from a seed: bombs, lies about sizes, broken and cut files, polyglots, endless metadata.

`hostile_images` yields (kind, bytes). None is larger than a few megabytes.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from typing import Final

from PIL import Image

from testbed.images.made import PNG_MAGIC, a_gif, a_pattern, a_png, chunk, encoded, noise

Hostile = tuple[str, bytes]
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")


def samples() -> list[tuple[str, bytes]]:
    """Ordinary files to be damaged, of every format and of some of its kinds."""
    photo, frames = noise((48, 32)), [a_pattern("P", (32, 32)), a_pattern("P", (32, 24)).resize((32, 32))]
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    exif.get_ifd(0x8825)[1] = "N"
    return [
        ("PNG", encoded(a_pattern())),
        ("PNG", encoded(a_pattern("P"), transparency=3, exif=exif)),
        ("PNG", encoded(a_pattern("I;16"))),
        ("PNG", encoded(frames[0], save_all=True, append_images=frames[1:])),
        ("JPEG", encoded(photo, "JPEG", exif=exif)),
        ("JPEG", encoded(photo, "JPEG", progressive=True, quality=95)),
        ("JPEG", encoded(a_pattern("CMYK"), "JPEG")),
        ("WEBP", encoded(photo, "WEBP", quality=60, exif=exif)),
        ("WEBP", encoded(a_pattern("RGBA"), "WEBP", lossless=True)),
        ("WEBP", encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:])),
        ("GIF", encoded(a_pattern("P"), "GIF")),
        ("GIF", encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], transparency=0)),
    ]


def _damaged(rng: random.Random, sound: list[tuple[str, bytes]]) -> Iterator[Hostile]:
    for _ in range(6):
        format, base = rng.choice(sound)
        changed = bytearray(base)
        for _ in range(rng.choice((1, 1, 2, 8, 60))):
            changed[rng.randrange(8, len(changed))] = rng.randrange(256)
        yield f"changed {format}", bytes(changed)
    for _ in range(2):
        format, base = rng.choice(sound)
        flipped = bytearray(base)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        yield f"one bit of a {format}", bytes(flipped)
    format, base = rng.choice(sound)
    yield f"cut {format}", base[: rng.randrange(1, len(base))]
    yield f"hole in a {format}", base[: rng.randrange(20, len(base))] + base[rng.randrange(20, len(base)) :]
    (format, base), (other, tail) = rng.sample(sound, 2)
    yield f"{format} that goes on as {other}", base[: rng.randrange(12, len(base))] + tail[rng.randrange(len(tail)) :]
    yield f"{other} behind a {format}", base + tail
    yield f"noise called {format}", base[: rng.randrange(12, 40)] + rng.randbytes(rng.randrange(5_000))


def _repaired(rng: random.Random) -> Iterator[Hostile]:
    """PNGs whose checksums are right, so that the damage gets as far as the pixels."""
    base = encoded(a_pattern("P"))
    at, chunks = len(PNG_MAGIC), []
    while at < len(base):
        (length,) = struct.unpack_from(">I", base, at)
        chunks.append((base[at + 4 : at + 8], bytearray(base[at + 8 : at + 8 + length])))
        at += 12 + length
    kind, data = rng.choice([each for each in chunks if each[1]])
    data[rng.randrange(len(data))] = rng.randrange(256)
    if kind == b"IHDR":
        data[:] = struct.pack(
            ">IIBBBBB", *(rng.choice((1, 40, 3_000, 70_000)) for _ in "wh"), *rng.choices(range(17), k=5)
        )
    if rng.random() < 0.3:
        chunks.insert(rng.randrange(len(chunks)), rng.choice(chunks))
    yield "repaired PNG", PNG_MAGIC + b"".join(chunk(kind, bytes(data)) for kind, data in chunks)


def _bombs(rng: random.Random) -> Iterator[Hostile]:
    yield "claims of a PNG", a_png(rng.choice((100_000, 2**31 - 1)), rng.choice((100_000, 1, 2**31 - 1)), b"\0" * 99)
    yield "more pixels than claimed", a_png(3, 3, bytes(rng.randrange(1, 30) << 20))
    yield "fewer pixels than claimed", a_png(4_000, 4_000, bytes(99))
    wide = rng.randrange(1_000, 5_000)
    yield "empty pixels", a_png(wide, 4_900, bytes((1 + (wide + 7) // 8) * 4_900), bits=1, colours=0)
    packed = zlib.compress(bytes(rng.randrange(1, 60) << 20), 9)
    yield "text bomb", a_png(1, 1, bytes(4), chunk(b"zTXt", b"a\0\0" + packed))
    yield "profile bomb", a_png(1, 1, bytes(4), chunk(b"iCCP", b"a\0\0" + packed))
    yield "many texts", a_png(1, 1, bytes(4), *(chunk(b"tEXt", b"k%d\0v" % n) for n in range(rng.randrange(40_000))))
    yield "many frames", a_gif(rng.choice((1, 300, 4_000)), rng.choice((1, 300, 4_000)), rng.randrange(2_000, 20_000))
    yield "claims of a GIF", a_gif(65_535, rng.choice((1, 65_535)), 2)
    scan = encoded(noise((64, 64)), "JPEG", progressive=True)
    at = scan.index(b"\xff\xda", scan.index(b"\xff\xda") + 2)
    yield "many scans", scan[:at] + scan[at:-2] * rng.randrange(2, 400) + b"\xff\xd9"
    start = scan.index(b"\xff\xc2")
    size = struct.pack(">HH", rng.choice((1, 16_000, 65_535)), rng.choice((1, 1_500, 65_535)))
    yield "claims of a JPEG", scan[: start + 5] + size + scan[start + 9 :]
    count = rng.randrange(1, 200)
    yield "many segments", scan[:2] + (b"\xff\xe1\xff\xff" + b"Exif\0\0" + rng.randbytes(65_527)) * count + scan[2:]
    canvas = (
        b"VP8X"
        + struct.pack("<I", 10)
        + bytes((2, 0, 0, 0))
        + (rng.choice((16_383, 2**24 - 1))).to_bytes(3, "little") * 2
    )
    yield "claims of a WebP", b"RIFF" + struct.pack("<I", 4 + len(canvas)) + b"WEBP" + canvas


def _metadata(rng: random.Random) -> Iterator[Hostile]:
    photo = noise((24, 16))
    tags = [(rng.choice((0x0112, 0x8769, 0x8825, 5)), 4, rng.choice((1, 2**31)), 8) for _ in range(2)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    cyclic = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + entries + struct.pack("<I", 8)
    yield "cyclic EXIF", encoded(photo, "JPEG", exif=cyclic)
    yield (
        "EXIF of noise",
        encoded(photo, "JPEG", exif=b"Exif\0\0" + rng.choice((b"II*\0", b"MM\0*", b"")) + rng.randbytes(200)),
    )
    tag = struct.pack("<HHII", 0x0112, rng.choice((1, 2, 3, 5, 12)), 1, rng.randrange(99))
    turned = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + tag
    yield "orientation of another type", encoded(photo, "JPEG", exif=turned)
    yield "profile of noise", encoded(photo, rng.choice(("PNG", "JPEG", "WEBP")), icc_profile=rng.randbytes(500))
    raw = "\nexif\n    9999\n" + rng.choice(("zz", "4949", "")) * 20
    yield "EXIF in a text", a_png(1, 1, bytes(4), chunk(b"tEXt", b"Raw profile type exif\0" + raw.encode()))


def hostile_images(count: int, seed: int) -> Iterator[Hostile]:
    """So many, of every kind in turn; the ordinary files that were damaged come first in each round."""
    rng, sound = random.Random(seed), samples()
    made = 0
    while True:
        for family in (_damaged(rng, sound), _repaired(rng), _bombs(rng), _metadata(rng)):
            for hostile in family:
                if made == count:
                    return
                made += 1
                yield hostile
