"""Requests that two HTTP servers may read differently: a table of framings, times the ways in which they are sent.

Each is a request to which more bytes are joined than its head seems to say, or fewer; those bytes are a request of
their own, for `SMUGGLED`. Whoever gets the answer to that on a connection of others has been smuggled to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SMUGGLED = b"smuggled"
WHOLE = b"GET /v1/models/%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % SMUGGLED
OPEN = WHOLE[:-2] + b"x: "  # whatever comes next on the connection is its last field: who sent that gets its answer
TE = b"transfer-encoding: chunked\r\n"
CL = b"content-length: %d\r\n"


class Framing(NamedTuple):
    """The fields of a head that say where its body ends, and what is sent behind it."""

    name: str
    fields: bytes
    behind: bytes
    line_end: bytes = b"\r\n"


def _encoding(name: str, field: bytes, inner: bytes) -> Iterator[Framing]:
    """A transfer coding that may be read as chunked or not, alone, and beside a length on either side."""
    ended = b"0\r\n\r\n" + inner
    yield Framing(f"coding {name}", field + b"\r\n", ended)
    yield Framing(f"coding {name}, length before", CL % len(ended) + field + b"\r\n", ended)
    yield Framing(f"coding {name}, short length behind", field + b"\r\n" + CL % 5, ended)


def framings(inner: bytes) -> Iterator[Framing]:
    """Yields every framing, with `inner` as what may be taken for a request."""
    size, chunked = len(inner), b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    whole = b"%d" % size
    yield Framing("none", b"", inner)
    lengths = {
        "plain": whole,
        "zero": b"0",
        "signed": b"+" + whole,
        "negative": b"-1",
        "padded": b"000" + whole,
        "hexadecimal": b"0x%x" % size,
        "list": whole + b", " + whole,
        "list of two": b"0, " + whole,
        "twice": whole + b"\r\ncontent-length: " + whole,
        "two": b"0\r\ncontent-length: " + whole,
        "two, the other way": whole + b"\r\ncontent-length: 0",
        "folded": b"0\r\n\t" + whole,
        "blank behind": whole + b" \t",
        "blank within": whole[:1] + b" " + whole[1:],
        "empty": b"",
        "huge": b"9" * 30,
        "fraction": whole + b".0",
        "underscored name": b"0\r\ncontent_length: " + whole,
        "blank before the colon": b"0\r\ncontent-length : " + whole,
        "bare feed within": b"0\ncontent-length: " + whole,
        "bare return within": b"0\rcontent-length: " + whole,
        "null within": b"0\x00" + whole,
    }
    for name, value in lengths.items():
        yield Framing(f"length {name}", b"content-length: " + value + b"\r\n", inner)
    codings = {
        "plain": b"transfer-encoding: chunked",
        "capital": b"Transfer-Encoding: ChUnKeD",
        "tab": b"transfer-encoding:\tchunked",
        "vertical tab": b"transfer-encoding: \x0bchunked",
        "blank before the colon": b"transfer-encoding : chunked",
        "underscored": b"transfer_encoding: chunked",
        "folded": b"transfer-encoding:\r\n chunked",
        "behind a fold": b"x: y\r\n transfer-encoding: chunked",
        "quoted": b'transfer-encoding: "chunked"',
        "with a parameter": b"transfer-encoding: chunked;q=1",
        "unknown": b"transfer-encoding: xchunked",
        "identity": b"transfer-encoding: identity",
        "identity last": b"transfer-encoding: chunked, identity",
        "gzip before": b"transfer-encoding: gzip, chunked",
        "twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "of two lines": b"transfer-encoding: identity\r\ntransfer-encoding: chunked",
        "bare feed before": b"x: y\ntransfer-encoding: chunked",
        "null before": b"x: y\x00\r\ntransfer-encoding: chunked",
    }
    for name, field in codings.items():
        yield from _encoding(name, field, inner)
    digits = b"%x" % size
    bodies = {
        "whole": chunked,
        "capital size": chunked.replace(digits, digits.upper(), 1),
        "padded size": b"0000" + chunked,
        "0x size": b"0x" + chunked,
        "signed size": b"+" + chunked,
        "overflowing size": b"1" + b"0" * 16 + chunked,
        "blank behind the size": chunked.replace(b"\r\n", b" \r\n", 1),
        "extension": chunked.replace(b"\r\n", b";a=b\r\n", 1),
        "quoted extension": chunked.replace(b"\r\n", b';a="\r\n"\r\n', 1),
        "feed in an extension": chunked.replace(b"\r\n", b";a\n\r\n", 1),
        "return in an extension": chunked.replace(b"\r\n", b";a\rb\r\n", 1),
        "long extension": chunked.replace(b"\r\n", b";" + b"a" * 4_000 + b"\r\n", 1),
        "bare feed behind the size": chunked.replace(b"\r\n", b"\n", 1),
        "no end of a chunk": b"1\r\na0\r\n\r\n" + inner,
        "more than its size": b"1\r\nabc\r\n0\r\n\r\n" + inner,
        "no last end": b"0\r\n" + inner,
        "trailer": b"0\r\nx: y\r\n\r\n" + inner,
        "length as trailer": b"0\r\n" + CL % size + b"\r\n" + inner,
        "bare feeds at the end": b"0\n\n" + inner,
        "no size": b"\r\n" + inner,
    }
    for name, body in bodies.items():
        yield Framing(f"chunks {name}", TE, body)
    for offer in (b"foo", b"h2c", b"websocket", b"websocket, foo", b"TLS/1.2"):
        for about, fields, behind in (("length", CL % size, inner), ("chunks", TE, chunked), ("nothing", b"", inner)):
            upgrade = b"connection: keep-alive, upgrade\r\nupgrade: %s\r\n" % offer
            yield Framing(f"upgrade {offer.decode()}, {about}", upgrade + fields, behind)
    settings = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
    yield Framing("HTTP/2 settings", settings + CL % size, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + inner)
    for expected in (b"100-continue", b"100-Continue, x", b"200-ok", b" 100-continue"):
        yield Framing(f"expect {expected.decode()}", b"expect:%s\r\n" % expected + CL % size, inner)
        yield Framing(f"expect {expected.decode()}, chunks", b"expect:%s\r\n" % expected + TE, chunked)
    for field_name in (b"content-length", b"transfer-encoding", b"host", b"upgrade"):
        yield Framing(f"connection {field_name.decode()}", b"connection: %s\r\n" % field_name + CL % size, inner)
    yield Framing("pipelined", b"", inner * 3)
    yield Framing("pipelined behind a body", CL % 2, b"{}" + inner * 2)
    yield Framing("bare feeds", CL % size, inner, line_end=b"\n")
    yield Framing("half of a body", CL % (size * 2), inner)


class Variant(NamedTuple):
    """One request, in the pieces in which it is sent."""

    name: str
    pieces: tuple[bytes, ...]


LINES = {"GET": b"GET /v1/models/MARKER HTTP/1.1", "POST": b"POST /v1/responses/MARKER/cancel HTTP/1.1"}


def variants(marker: bytes) -> Iterator[Variant]:
    """Yields every framing of a whole request and of an open one, for a request that reads no body and one that does,
    with the body beside its head, behind it, and within itself in two."""
    for about, inner in (("whole", WHOLE), ("open", OPEN)):
        for framing in framings(inner):
            for method, line in LINES.items():
                fields = b"host: localhost\r\n" + framing.fields + b"\r\n"
                head = (line.replace(b"MARKER", marker) + b"\r\n" + fields).replace(b"\r\n", framing.line_end)
                behind, half = framing.behind, len(framing.behind) // 2
                name = f"{framing.name}, {method}, {about}"
                yield Variant(f"{name}, at once", (head + behind,))
                yield Variant(f"{name}, behind", (head, behind))
                yield Variant(f"{name}, in halves", (head + behind[:half], behind[half:]))
