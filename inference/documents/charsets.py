"""Turns the bytes of a text into characters: by its byte order mark, as UTF-8, or as the charset that it looks like."""

from __future__ import annotations

import codecs
from typing import Final

_MARKS: Final = (  # UTF-32's begin as UTF-16's do
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SAMPLE_BYTES: Final = 64 * 1024  # of which a charset is told
_CONTROL: Final = frozenset(range(0x20)) - frozenset(b"\t\n\r\f\v\b\x1b") | {0x7F}
CONTROL_SHARE_MAX: Final = 0.01
LATIN_SHARE_MAX: Final = 0.3  # of signs beyond ASCII in a text of Latin letters
TELLING_BYTES: Final = 32  # shorter texts say too little about their charset


def looks_binary(content: bytes) -> bool:
    """Returns whether bytes are not a text in any charset that is read here."""
    sample = content[:SAMPLE_BYTES]
    if any(sample.startswith(mark) for mark, _ in _MARKS) or not sample:
        return False
    if b"\0" in sample:
        wide = _bare_utf16(sample)
        if wide is None:
            return True
        sample = sample.decode(wide, "replace").encode("latin-1", "ignore")
    return sum(map(sample.count, (bytes((sign,)) for sign in _CONTROL))) > CONTROL_SHARE_MAX * len(sample)


def decode_text(content: bytes) -> str:
    """Decodes a text; undecodable bytes become U+FFFD. Raises nothing."""
    for mark, charset in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(charset, "replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        pass
    if (wide := _bare_utf16(content[:SAMPLE_BYTES])) is not None:
        return content.decode(wide, "replace")
    return content.decode(_detected(content[:SAMPLE_BYTES]), "replace")


def _bare_utf16(sample: bytes) -> str | None:
    """Returns the charset of UTF-16 text without a byte order mark, as far as Latin letters show it; else None."""
    half = len(sample) // 2
    if half < 4:
        return None
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if odd > 0.4 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.4 * half and odd < 0.05 * half:
        return "utf-16-be"
    return None


def _detected(sample: bytes) -> str:
    """Guesses the charset of a text. A sample of UTF-8 that is cut inside a character counts as UTF-8."""
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(sample, final=False)
        return "utf-8"
    except UnicodeDecodeError:
        pass
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return "cp1252"
    beyond = sum(byte >= 0x80 for byte in sample)
    if beyond < LATIN_SHARE_MAX * len(sample) or len(sample) < TELLING_BYTES:
        return "cp1252"  # detectors take the charsets of Latin letters for each other
    best = from_bytes(sample, steps=5, chunk_size=512).best()
    return "cp1252" if best is None else str(best.encoding)
