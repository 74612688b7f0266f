"""Hostile documents, made from a seed: bombs, broken and cyclic PDFs, XML that names files, polyglots, endless texts.

`hostile_documents` yields (kind, filename, bytes). None is larger than a few megabytes.
"""

from __future__ import annotations

import io
import random
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from testbed.documents.made import a_docx, a_pdf, a_pptx, an_xlsx

Hostile = tuple[str, str, bytes]
SECRET: Final = "root:x:0:0"
"""What stands in /etc/passwd, and must stand in no text."""

_WORD: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def _repacked(
    content: bytes, part: str, change: Callable[[bytes], bytes], more: dict[str, bytes] | None = None
) -> bytes:
    """A container with one part changed, and others added."""
    out = io.BytesIO()
    with (
        warnings.catch_warnings(),
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        warnings.simplefilter("ignore")
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name == part else data)
        for name, data in (more or {}).items():
            new.writestr(name, data)
    return out.getvalue()


def _with_doctype(doctype: str, use: str) -> Callable[[bytes], bytes]:
    """Puts a doctype in front of a part's root, and a reference into its first text."""

    def change(data: bytes) -> bytes:
        text = data.decode()
        head, _, rest = text.partition("?>")
        return f"{head}?>{doctype}{rest.replace('hello', use, 1)}".encode()

    return change


def _laughs(levels: int, width: int) -> str:
    entities = "".join(
        f'<!ENTITY a{n} "{f"&a{n - 1};" * width}">' if n else '<!ENTITY a0 "lol">' for n in range(levels)
    )
    return f"<!DOCTYPE x [{entities}]>"


def _stream_pdf(data: bytes, filters: bytes) -> bytes:
    """A page whose content is `data` behind filters."""
    base = a_pdf(["hello"])
    at = base.index(b"<< /Length")
    end = base.index(b"endobj", at)
    made = b"<< /Filter %s /Length %d >>\nstream\n%s\nendstream\n" % (filters, len(data), data)
    return base[:at] + made + base[end:]


def _zip_bombs(rng: random.Random) -> Iterator[Hostile]:
    size = rng.randrange(1, 60) << 20
    part = "word/document.xml"
    yield "zip bomb", "b.docx", _repacked(a_docx(["hello"]), part, lambda data: bytes(size))
    spaces = b" " * rng.randrange(1 << 20, 3 << 20)
    yield "dense part", "b.docx", _repacked(a_docx(["hello"]), part, lambda data: data.replace(b"hello", spaces))
    many = {f"x/{n}": b"" for n in range(rng.choice((200, 6000)))}
    yield "many parts", "b.docx", _repacked(a_docx(["hello"]), part, lambda data: data, many)
    inner = _repacked(a_docx(["hello"]), part, lambda data: bytes(10 << 20))
    yield "nested", "b.docx", _repacked(a_docx(["hello"]), part, lambda data: data, {"word/embeddings/x.docx": inner})
    lying = bytearray(a_docx(["hello " * 500]))
    place = lying.index(b"PK\1\2")
    lying[place + 24 : place + 28] = rng.choice((0, 1, 0xFFFFFFFF)).to_bytes(4, "little")
    yield "size that lies", "b.docx", bytes(lying)
    names = {rng.choice(("../../etc/passwd", "/etc/passwd", "C:\\x", "word/../x")): b"x"}
    yield "names of paths", "b.docx", _repacked(a_docx(["hello"]), part, lambda data: data, names)


def _xml_bombs(rng: random.Random) -> Iterator[Hostile]:
    makers = (
        ("x.docx", a_docx(["hello"]), "word/document.xml"),
        ("x.xlsx", an_xlsx({"s": [["hello"]]}), "xl/worksheets/sheet1.xml"),
        ("x.pptx", a_pptx([("hello", "b", "")]), "ppt/slides/slide1.xml"),
    )
    name, base, part = rng.choice(makers)
    levels = rng.randrange(5, 40)
    yield "billion laughs", name, _repacked(base, part, _with_doctype(_laughs(levels, 10), f"&a{levels - 1};"))
    quadratic = f'<!DOCTYPE x [<!ENTITY q "{"q" * 100_000}">]>'
    yield "quadratic entities", name, _repacked(base, part, _with_doctype(quadratic, "&q;" * rng.randrange(100, 5000)))
    target = rng.choice(("file:///etc/passwd", "http://127.0.0.1:1/x", "/etc/passwd", "file:///proc/self/environ"))
    outside = f'<!DOCTYPE x [<!ENTITY e SYSTEM "{target}">]>'
    yield "external entity", name, _repacked(base, part, _with_doctype(outside, "&e;"))
    depth = rng.randrange(1_000, 60_000)
    deep = b"<w:p>" * depth + b"</w:p>" * depth
    body = b'<?xml version="1.0"?><w:document xmlns:w="%s"><w:body>%s</w:body></w:document>' % (_WORD.encode(), deep)
    yield "deep XML", "x.docx", _repacked(makers[0][1], "word/document.xml", lambda data: body)
    tables = rng.randrange(50, 400)
    nested = b"<w:tbl><w:tr><w:tc>" * tables + b"<w:p/>" + b"</w:tc></w:tr></w:tbl>" * tables
    body2 = b'<?xml version="1.0"?><w:document xmlns:w="%s"><w:body>%s</w:body></w:document>' % (_WORD.encode(), nested)
    yield "tables in tables", "x.docx", _repacked(makers[0][1], "word/document.xml", lambda data: body2)
    far = b'<row r="1048576"><c r="XFD1048576" t="inlineStr"><is><t>x</t></is></c></row></sheetData>'
    sheet = _repacked(makers[1][1], makers[1][2], lambda data: data.replace(b"</sheetData>", far))
    yield "cell far away", "x.xlsx", sheet
    broken = bytearray(base)
    for _ in range(rng.randrange(1, 30)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    yield "changed container", name, bytes(broken)


def _pdfs(rng: random.Random) -> Iterator[Hostile]:
    base = a_pdf(["Hello world\nmore"] * rng.randrange(1, 6), outline=[(0, "Hello")])
    yield "cut PDF", "a.pdf", base[: rng.randrange(5, len(base))]
    changed = bytearray(base)
    for _ in range(rng.randrange(1, 60)):
        changed[rng.randrange(5, len(changed))] = rng.randrange(256)
    yield "changed PDF", "a.pdf", bytes(changed)
    packed = zlib.compress(b"0 " * (rng.randrange(1, 120) << 19), 9)
    yield "flate bomb", "a.pdf", _stream_pdf(packed, b"/FlateDecode")
    twice = zlib.compress(zlib.compress(bytes(rng.randrange(1, 80) << 20), 9), 9)
    yield "flate in flate", "a.pdf", _stream_pdf(twice, b"[/FlateDecode /FlateDecode]")
    yield "many filters", "a.pdf", _stream_pdf(b"x", b"[" + b"/ASCIIHexDecode " * rng.randrange(10, 5000) + b"]")
    kids = b"/Kids [%d 0 R]" % rng.choice((1, 2))
    yield "cyclic pages", "a.pdf", base.replace(b"/Kids [4 0 R", kids[:-1] + b" 4 0 R", 1)
    yield "cyclic outline", "a.pdf", base.replace(b"/Dest [", b"/Next %d 0 R /Dest [" % rng.randrange(3, 20), 1)
    many = b"/Count %d" % rng.choice((-1, 10**6, 10**12, 2**31))
    yield "count that lies", "a.pdf", base.replace(b"/Count 1", many, 1)
    deep = rng.randrange(500, 200_000)
    yield (
        "deep arrays",
        "a.pdf",
        base.replace(b"/Resources <<", b"/X " + b"[" * deep + b"]" * deep + b" /Resources <<", 1),
    )
    operators = b"q " * rng.randrange(1000, 300_000) + b"BT (x) Tj ET"
    yield "many operators", "a.pdf", _stream_pdf(operators, b"[]")
    names = b"<<" + b"".join(b"/N%d 1 " % n for n in range(rng.randrange(100, 20_000))) + b">>"
    yield "many names", "a.pdf", base.replace(b"/Resources <<", b"/X " + names + b" /Resources <<", 1)
    yield "header alone", "a.pdf", b"%PDF-1.7\n" + rng.randbytes(rng.randrange(0, 5000))
    action = (
        b"/Type /Catalog /OpenAction << /S /Launch /F (/bin/sh) >> /AA << /O << /S /URI /URI (http://127.0.0.1) >> >>"
    )
    yield "actions", "a.pdf", base.replace(b"/Type /Catalog", action, 1)


def _polyglots(rng: random.Random) -> Iterator[Hostile]:
    pdf, word = a_pdf(["hello"]), a_docx(["hello"])
    first, second = rng.sample([pdf, word, b"GIF89a=0//", b"<html><script>alert(1)</script>", b"MZ" + bytes(200)], 2)
    yield "polyglot", rng.choice(("a.pdf", "a.docx", "a.html", "a.txt")), first + second
    yield "PDF in a remark", "a.html", b"<!--" + pdf + b"--><html>hello"
    yield "HTML called PDF", "a.pdf", b"<html><script>fetch('/v1/keys')</script>hello"
    yield "late PDF", "a.txt", b"x" * rng.randrange(900, 1100) + pdf


def _texts(rng: random.Random) -> Iterator[Hostile]:
    length = rng.randrange(1_000, 3_000_000)
    yield "noise", "a.txt", rng.randbytes(min(length, 300_000))
    yield "one line", "a.txt", b"x" * length
    yield "no UTF-8", "a.txt", b"abc \xff\xfe\x80" * (length // 20)
    yield (
        "marks alone",
        "a.txt",
        rng.choice((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\xff\xfe\0\0")) + rng.randbytes(99),
    )
    yield "surrogates", "a.txt", b"\xff\xfe" + b"\0\xd8" * (length // 50)
    tag = rng.choice((b"<div>", b"<b><i>", b"<table><tr><td>", b"<svg>", b"<p x='"))
    yield "deep HTML", "a.html", tag * min(length // 10, 100_000)
    yield (
        "cut HTML",
        "a.html",
        rng.choice((b"<!--", b"<![CDATA[", b"<!DOCTYPE ", b"<a href='", b"<", b"&")) * (length // 50),
    )
    yield "long attribute", "a.html", b"<p title='" + b"x" * length + b"'>hello"
    sign = rng.choice((b"> ", b"[", b"*", b"- ", b"`", b"![", b"#", b"\\", b"1. ", b"<!--", b"|"))
    yield "deep Markdown", "a.md", sign * rng.randrange(1_000, 60_000)


def hostile_documents(count: int, seed: int) -> Iterator[Hostile]:
    """So many, of every kind in turn."""
    rng = random.Random(seed)
    made = 0
    while True:
        for family in (_pdfs, _texts, _xml_bombs, _polyglots, _zip_bombs):
            for each in family(rng):
                if made == count:
                    return
                made += 1
                yield each
