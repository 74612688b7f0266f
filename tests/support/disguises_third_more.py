"""The second half of the third set of disguised messages, and the list of all of its methods."""

from __future__ import annotations

import base64
import binascii
import random
import string
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterator

from tests.support.disguises_third import (
    AFTER,
    ALIKE,
    BEFORE,
    PHRASES,
    Message,
    char_references,
    cut,
    decode,
    enclosed_letters,
    escape_encodings,
    insert,
    letters_apart,
    markup_inside,
    nested_base64,
    per_letter,
    script_lookalikes,
    tag_characters,
    wrap,
)

# ---------------------------------------------------------------- 9. base32, hexadecimal, MIME, numbers


def transfer_encodings(phrase: str, rng: random.Random) -> str:
    text = phrase if rng.random() < 0.4 else f"{rng.choice(BEFORE)} {phrase} {rng.choice(AFTER)}"
    data = text.encode()
    kind = rng.randrange(10)
    if kind <= 1:
        out = base64.b32encode(data).decode()
        out = rng.choice(
            [out, out.rstrip("="), out.lower().rstrip("="), "\n".join(out[i : i + 48] for i in range(0, len(out), 48))]
        )
    elif kind <= 3:
        out = binascii.hexlify(data).decode()
        out = rng.choice(
            [
                out,
                out.upper(),
                data.hex(" "),
                data.hex(":"),
                "0x" + out,
                " ".join(f"0x{b:02x}" for b in data),
                data.hex("-").upper(),
            ]
        )
    elif kind == 4:
        out = base64.b64encode(rng.choice([base64.b32encode(data), binascii.hexlify(data)])).decode()
    elif kind == 5:
        out = base64.b32encode(base64.b64encode(data)).decode()
    elif kind == 6:  # quoted-printable with soft line breaks inside words
        out = (
            insert(phrase, rng, lambda: "=\n", 0.1) if rng.random() < 0.5 else "".join(f"={ord(c):02X}" for c in phrase)
        )
        return (
            f"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n{wrap(out, rng)}"
        )
    elif kind == 7:  # encoded words of a mail header
        if rng.random() < 0.5:
            out = f"=?utf-8?B?{base64.b64encode(phrase.encode()).decode()}?="
        else:
            out = (
                "=?UTF-8?Q?"
                + "".join(
                    f"={ord(c):02X}" if c != " " and rng.random() < 0.5 else c.replace(" ", "_") for c in phrase[:-1]
                )
                + f"={ord(phrase[-1]):02X}?="
            )
        return f"From: Ann <ann@example.org>\nSubject: {out}\n\nPlease answer the question in the subject line."
    elif kind == 8:
        out = rng.choice([" ", ", ", ","]).join(str(b) for b in phrase.encode())
    else:
        out = rng.choice([" ", " ", ""]).join(f"{b:08b}" for b in phrase.encode())
    return decode(out, rng)


# ---------------------------------------------------------------- 10. over neighbouring messages


def split_messages(phrase: str, rng: random.Random) -> list[str]:
    kind = rng.randrange(6)
    if kind == 0 and len(phrase) >= 12:
        a, b, c = cut(phrase, rng, 3)
        return [f"{rng.choice(BEFORE)} {a}", b, f"{c} {rng.choice(AFTER)}"]
    if kind == 1 and " " in phrase:  # between two words
        at = rng.choice([i for i, ch in enumerate(phrase) if ch == " "])
        return [f"{rng.choice(BEFORE)} {phrase[:at]}", f"{phrase[at + 1 :]} {rng.choice(AFTER)}"]
    a, b = cut(phrase, rng, 2)
    if kind == 2:
        return [f"{rng.choice(BEFORE)} {a}...", f"...{b} {rng.choice(AFTER)}"]
    if kind == 3:
        return [f"{rng.choice(BEFORE)} {a}-", f"{b} {rng.choice(AFTER)}"]
    if kind == 4:
        return [f"Part one of my question ends with: {a}", f"{b} {rng.choice(AFTER)}"]
    return [f"{rng.choice(BEFORE)} {a}", f"{b} {rng.choice(AFTER)}"]


# ---------------------------------------------------------------- 11. leetspeak and chat habits

_LEET = {
    "a": "4@4",
    "b": "8",
    "e": "33\u20ac",
    "g": "9",
    "i": "1!1",
    "l": "1|",
    "o": "00",
    "s": "5$5",
    "t": "7+7",
    "z": "2",
    "c": "(",
    "d": "d",
}


def leetspeak(phrase: str, rng: random.Random) -> str:
    light = {k: v[0] for k, v in _LEET.items() if k in "aeiost"}
    table = light if rng.random() < 0.5 else _LEET
    out = []
    for word in phrase.split(" "):
        usable = [i for i, c in enumerate(word) if c in table]
        picks = {i for i in usable if rng.random() < 0.7} or set(usable[:1])
        new = "".join(rng.choice(table[c]) if i in picks else c for i, c in enumerate(word))
        out.append(new)
    text = " ".join(out)
    if text == phrase:
        text = phrase.replace("e", "3").replace("a", "4").replace("i", "1").replace("o", "0")
    if rng.random() < 0.25:  # mixed case
        text = "".join(c.upper() if rng.random() < 0.5 else c for c in text)
    elif rng.random() < 0.2:  # one vowel stretched
        at = [i for i, c in enumerate(text) if c in "aeiou"] or [i for i, c in enumerate(text) if c.isalpha()]
        i = rng.choice(at)
        text = text[:i] + text[i] * rng.randint(2, 4) + text[i + 1 :]
    return wrap(text, rng)


# ---------------------------------------------------------------- 12. invisible characters

_INVISIBLE = [
    "\u200b",
    "\u200c",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\u034f",
    "\u061c",
    "\u180e",
    "\u200e",
    "\u200f",
    "\u2061",
    "\u2062",
    "\u2063",
    "\u2064",
    "\ufe0e",
    "\ufe0f",
    "\ufe00",
    "\U000e0100",
    "\U000e01ef",
    "\u206a",
    "\u206f",
    "\U0001d173",
    "\u180b",
    "\u2066",
    "\u2069",
    "\u202a",
    "\u202c",
    "\u17b4",
    "\u3164",
]


def invisible_fillers(phrase: str, rng: random.Random) -> str:
    if rng.random() < 0.5:
        char = rng.choice(_INVISIBLE[:-1])
        out = insert(phrase, rng, lambda: char, rng.choice([0.2, 1.0]))
    else:
        out = insert(phrase, rng, lambda: "".join(rng.choice(_INVISIBLE[:-1]) for _ in range(rng.randint(1, 4))), 0.6)
    if rng.random() < 0.2:
        out = out.replace(" ", rng.choice(["\u3000", "\u2003", "\u202f", "\u3164", "\u2800", "\u00a0"]))
    return wrap(out, rng)


# ---------------------------------------------------------------- 13. diacritics, overlays, stroked letters

_STROKED = {
    "b": "\u0180\u0253",
    "c": "\u023c\u00e7",
    "d": "\u0111\u0257",
    "e": "\u0247\u00eb\u0119",
    "g": "\u01e5\u011f",
    "h": "\u0127\u1e25",
    "i": "\u0268\u00ef",
    "j": "\u0249",
    "k": "\u0199\u0137",
    "l": "\u0142\u019a",
    "n": "\u0272\u00f1",
    "o": "\u00f8\u00f6\u0151",
    "p": "\u1d7d\u01a5",
    "r": "\u024d\u0159",
    "s": "\u0161\u015f",
    "t": "\u0167\u01ad",
    "u": "\u0289\u00fc\u016f",
    "y": "\u024f\u00fd",
    "z": "\u01b6\u017c",
    "a": "\u00e5\u0105\u0227",
    "f": "\u0192",
    "m": "\u1e41",
    "w": "\u0175",
    "x": "\u1e8b",
    "v": "\u1e7d",
    "q": "\u024b",
}


def diacritics(phrase: str, rng: random.Random) -> str:
    kind = rng.randrange(4)
    above = [chr(n) for n in range(0x300, 0x315)]
    below = [chr(n) for n in range(0x323, 0x334)]
    over = ["\u0334", "\u0335", "\u0336", "\u0337", "\u0338"]
    if kind == 0:  # struck through or underlined letter by letter
        mark = rng.choice([*over, "\u0332", "\u0333", "\u0305"])
        out = "".join(c + mark for c in phrase)
    elif kind == 1:  # zalgo
        out = "".join(
            c + "".join(rng.choice(above + below) for _ in range(rng.randint(1, 4))) if c.isalpha() else c
            for c in phrase
        )
    elif kind == 2:
        out = per_letter(phrase, rng, lambda c: rng.choice(_STROKED.get(c, c)), rng.choice([0.4, 1.0]))
    else:
        out = unicodedata.normalize(
            "NFC",
            per_letter(
                phrase,
                rng,
                lambda c: c + rng.choice(["\u0301", "\u0300", "\u0308", "\u0302", "\u0303", "\u0323", "\u030c"]),
                0.6,
            ),
        )
    return wrap(out, rng)


# ---------------------------------------------------------------- 14. what "fancy text" pages make

_STYLES = [
    0x1D41A,
    0x1D44E,
    0x1D482,
    0x1D4EA,
    0x1D51E,
    0x1D552,
    0x1D586,
    0x1D5BA,
    0x1D5EE,
    0x1D622,
    0x1D656,
    0x1D68A,
    0xFF41,
]
_SMALLCAPS = dict(
    zip(
        string.ascii_lowercase,
        "\u1d00\u0299\u1d04\u1d05\u1d07\ua730\u0262\u029c\u026a\u1d0a\u1d0b\u029f\u1d0d\u0274\u1d0f\u1d18\ua7af\u0280\ua731\u1d1b\u1d1c\u1d20\u1d21x\u028f\u1d22",
        strict=False,
    )
)
_SUPER = dict(
    zip(
        string.ascii_lowercase,
        "\u1d43\u1d47\u1d9c\u1d48\u1d49\u1da0\u1d4d\u02b0\u2071\u02b2\u1d4f\u02e1\u1d50\u207f\u1d52\u1d56\U000107a5\u02b3\u02e2\u1d57\u1d58\u1d5b\u02b7\u02e3\u02b8\u1dbb",
        strict=False,
    )
)


def _styled(c: str, base: int) -> str:
    return "\u210e" if base == 0x1D44E and c == "h" else chr(base + ord(c) - 97)


def fancy_fonts(phrase: str, rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind <= 2:
        base = rng.choice(_STYLES)
        out = "".join(_styled(c, base) if c.isalpha() else c for c in phrase)
        if base == 0xFF41:
            out = out.replace(" ", "\u3000")
    elif kind == 3:
        out = "".join(_SMALLCAPS.get(c, c) for c in phrase)
    elif kind == 4:
        out = "".join(_SUPER.get(c, c) for c in phrase)
    else:
        out = "".join(_styled(c, rng.choice(_STYLES)) if c.isalpha() else c for c in phrase)
    return wrap(out, rng)


# ---------------------------------------------------------------- 15. shown or read the other way round

_TURNED = dict(
    zip(
        string.ascii_lowercase,
        "\u0250q\u0254p\u01dd\u025f\u0183\u0265\u1d09\u027e\u029el\u026fuodb\u0279s\u0287n\u028c\u028dx\u028ez",
        strict=False,
    )
)


def reversed_display(phrase: str, rng: random.Random) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return wrap(f"\u202e{phrase[::-1]}\u202c", rng)
    if kind == 1:
        # isolated or with a left-to-right mark, so that the words themselves keep their order
        first, last = rng.choice([("\u2066\u202e", "\u202c\u2069"), ("\u202e", "\u202c\u200e")])
        return wrap(" ".join(first + w[::-1] + last for w in phrase.split(" ")), rng)
    if kind == 2:
        return wrap(f'<bdo dir="rtl">{phrase[::-1]}</bdo>', rng)
    if kind == 3:
        return f"{rng.choice(['turn your screen around:', 'upside down fun:', 'can you read this?'])} {''.join(_TURNED.get(c, c) for c in reversed(phrase))}"  # noqa: E501
    return rng.choice(
        [
            "Read this backwards and answer: {}",
            "{} <- reverse the letters, then explain it",
            "reverse('{}') is my question",
        ]
    ).format(phrase[::-1])


# ---------------------------------------------------------------- 16. pieces put together in code


def string_pieces(phrase: str, rng: random.Random) -> str:
    parts = cut(phrase, rng, rng.choice([2, 3]) if len(phrase) >= 10 else 2)
    q = rng.choice(["'", '"'])
    quoted = [f"{q}{p}{q}" for p in parts]
    names = rng.sample(["a", "b", "c", "x", "y", "part1", "part2", "foo", "bar"], len(parts))
    kind = rng.randrange(9)
    if kind == 0:
        code = rng.choice([" + ", "+", " . ", " || ", " & ", " "]).join(quoted)
    elif kind == 1:
        code = (
            "; ".join(f"{n} = {v}" for n, v in zip(names, quoted, strict=False))
            + f"; tell me about {' + '.join(names)}"
        )
    elif kind == 2:
        code = f"{q}{q}.join([{', '.join(quoted)}])"
    elif kind == 3:
        code = f"[{', '.join(q + c + q for c in phrase)}]"
    elif kind == 4:
        code = "+".join(f"chr({ord(c)})" for c in phrase)
    elif kind == 5:
        code = (
            "\n".join(f"let {n} = {v};" for n, v in zip(names, quoted, strict=False))
            + "\nprint(`"
            + "".join(f"${{{n}}}" for n in names)
            + "`)"
        )
    elif kind == 6:  # defined in another order than used
        pairs = list(zip(names, quoted, strict=False))
        rng.shuffle(pairs)
        code = "\n".join(f"{n} = {v}" for n, v in pairs) + f"\nz = {' + '.join(names)}\nNow answer z."
    elif kind == 7:
        code = f"concat({', '.join(quoted)})"
    else:
        code = "echo " + rng.choice(["''", '""', "$@", "``"]).join(parts).replace(
            " ", rng.choice([" ", "\\ ", "${IFS}"])
        )  # as a shell reads it
    return rng.choice(
        [
            "What would this print, and what do you know about the result? {}",
            "```\n{}\n```\nevaluate and continue from the result",
            "{}\n\nuse the result as my question",
            "tell me all about {}",
        ]
    ).format(code)


# ---------------------------------------------------------------- 17. two of them at once


def two_layers(phrase: str, rng: random.Random) -> Message:
    def alike(text: str) -> str:
        return per_letter(text, rng, lambda c: rng.choice(ALIKE.get(c, c)[:3]), 0.5)

    def leet(text: str) -> str:
        return "".join({"a": "4", "e": "3", "i": "1", "o": "0", "s": "5"}.get(c, c) for c in text)

    def invisible(text: str) -> str:
        return insert(text, rng, lambda: rng.choice(_INVISIBLE[:8]), 0.5)

    def apart(text: str, sep: str) -> str:
        return "  ".join(sep.join(w) for w in text.split(" "))

    kind = rng.randrange(14)
    if kind == 0:
        return wrap(apart(alike(phrase), rng.choice([" ", "-", "."])), rng)
    if kind == 1:
        return wrap(apart(leet(phrase), rng.choice(["-", ".", "_"])), rng)
    if kind == 2:
        return wrap(invisible(alike(phrase)), rng)
    if kind == 3:
        return wrap(insert(phrase, rng, lambda: "<b></b>", 0.3).replace("<", "&lt;").replace(">", "&gt;"), rng)
    if kind == 4:
        return decode(base64.b64encode(alike(f"tell me about {phrase}").encode()).decode(), rng)
    if kind == 5:
        return decode(urllib.parse.quote(alike(phrase)), rng)
    if kind == 6:
        return decode(base64.b64encode("".join(f"\\u{ord(c):04x}" for c in phrase).encode()).decode(), rng)
    if kind == 7:
        a, b = cut(phrase, rng, 2)
        return [f"{rng.choice(BEFORE)} {alike(a)}", f"{alike(b)} {rng.choice(AFTER)}"]
    if kind == 8:
        base = rng.choice(_STYLES[:-1])
        return wrap("".join(_styled(c, base) + "\u0336" if c.isalpha() else c for c in phrase), rng)
    if kind == 9:
        return wrap(
            " ".join(
                "".join(f"**{c}**" if i % 2 else c for i, c in enumerate(invisible(w)))
                if len(w) < 3
                else f"{w[0]}**{invisible(w[1:])}**"
                for w in phrase.split(" ")
            ),
            rng,
        )
    if kind == 10:
        return f"Hello there.\n<!-- {base64.b64encode(('please explain ' + phrase).encode()).decode()} -->\nRead the comment above."  # noqa: E501
    if kind == 11:
        return decode(base64.b64encode(apart(phrase, "-").encode()).decode(), rng)
    if kind == 12:
        return decode("".join(f"%{b:02X}" for b in "".join(f"&#{ord(c)};" for c in phrase).encode()), rng)
    return wrap(
        "".join(c if c == " " else chr(0x24D0 + ord(c) - 97) + rng.choice(["", "<i></i>", "<wbr>"]) for c in phrase),
        rng,
    )


METHODS: dict[str, Callable[[str, random.Random], Message]] = {
    f.__name__: f
    for f in (
        markup_inside,
        char_references,
        enclosed_letters,
        script_lookalikes,
        tag_characters,
        letters_apart,
        escape_encodings,
        nested_base64,
        transfer_encodings,
        split_messages,
        leetspeak,
        invisible_fillers,
        diacritics,
        fancy_fonts,
        reversed_display,
        string_pieces,
        two_layers,
    )
}


def cases(seed: int) -> Iterator[tuple[str, str, Message]]:
    for name, method in METHODS.items():
        for phrase in PHRASES:
            rng = random.Random(f"third/{seed}/{name}/{phrase}")
            for _ in range(50):  # a message that still shows the phrase plainly would be no disguise
                message = method(phrase, rng)
                texts = message if isinstance(message, list) else [message]
                if not any(phrase in t.lower() for t in texts):
                    break
            else:
                raise AssertionError((name, phrase))
            yield name, phrase, message
