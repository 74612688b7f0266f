"""Regular expressions for personal data and secrets, each with its check, over plain text (`normalize`).

Each pattern says how far it reaches, because an answer is shown while it is written (`output_filter`).
A pattern that begins with a set of letters, what may stand before them behind it, is searched for several times faster
than one that begins with a look-behind. Two reaches:

* "word": a match lies inside one run of printable ASCII without a space, and takes at most `WORD_MAX` of it;
* "number": it may run on over single spaces between groups that hold digits or are short and in capitals, and takes
  at most `NUMBER_MAX` in all.

Checksums decide where a kind has one (Luhn, ISO 7064 for IBAN); a number without one needs the shape that people write.
Sources: ISO/IEC 7812, ISO 13616, the SSA's rules for numbers never given out, and the published prefixes of each
service's keys.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import cache
from typing import Final, Literal, NamedTuple

from stdnum import luhn, numdb
from stdnum.iso7064 import mod_97_10

WORD_MAX: Final = 512
NUMBER_MAX: Final = 64


class Pattern(NamedTuple):
    kind: str
    reach: Literal["word", "number"]
    regex: re.Pattern[str]
    check: Callable[[str], bool] | None = None


def is_card_number(text: str) -> bool:
    """Returns whether a text is a card number by ISO/IEC 7812: 12 to 19 digits with their Luhn check digit, not all the
    same."""
    digits = re.sub(r"\D", "", text)
    return 12 <= len(digits) <= 19 and len(set(digits)) > 1 and luhn.checksum(str(int(digits))) == 0


def is_iban(text: str) -> bool:
    """Returns whether a text begins with an IBAN by ISO 13616: as long as its country's are, with a valid ISO 7064
    check."""
    packed = re.sub("[ -]", "", text)
    length = iban_length(packed[:2])
    return 0 < length <= len(packed) and mod_97_10.is_valid(packed[4:length] + packed[:4])


@cache
def iban_length(country: str) -> int:
    """Returns the length of a country's IBANs by the registry; 0 for one that has none."""
    ((_, facts), *_) = numdb.get("iban").info(country)
    return 4 + sum(int(count) for count in re.findall(r"(\d+)!", facts["bban"])) if facts else 0


def is_ssn(text: str) -> bool:
    area, group, serial = re.split("[- ]", text)
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def is_phone(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    return 9 <= len(digits) <= 15 and len(set(digits)) > 2


def is_public_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)


def is_varied(text: str) -> bool:
    """Returns whether a text is no placeholder such as xxxxxxxx, 00000000 or your-key-here."""
    return len(set(text)) > 6 and not re.search(r"(?i)your|example|placeholder|xxxx|0000|1234567", text)


PII: Final[tuple[Pattern, ...]] = (
    Pattern(
        "email",
        "word",
        re.compile(
            r"(?<![\w.+-])[A-Za-z0-9_][\w.%+'-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,6}[A-Za-z]{2,24}"
            r"(?![\w-])",
            re.ASCII,
        ),
    ),
    # In groups as on a card, or digit by digit, with the same sign between all of them.
    Pattern(
        "credit_card",
        "number",
        re.compile(
            r"(?<![\w.])(?:\d{4}(?P<a>[!-,./:-@\[-`{-~])\d{4}(?P=a)\d{4}(?P=a)\d{4}|\d{4}(?P<b>[!-,./:-@\[-`{-~])\d{6}(?P=b)\d{5}"
            r"|\d(?P<c>[!-,./:-@\[-`{-~])\d(?:(?P=c)\d){11,17})(?![^\w\s]?\d)(?!\w)"
        ),
        is_card_number,
    ),
    Pattern(
        "credit_card",
        "number",
        re.compile(r"(?<![\w.])(?<!\d[ -])\d(?:[ -]?\d){12,18}(?![ -]?\d)(?!\w)"),
        is_card_number,
    ),
    Pattern(
        "iban",
        "number",
        re.compile(r"[A-Z](?<![A-Za-z0-9].)[A-Z]\d{2}(?:[ -]?[A-Z0-9]){3,32}(?![A-Za-z0-9])"),
        is_iban,
    ),
    Pattern("us_ssn", "number", re.compile(r"(?<![\w-])\d{3}([- ])\d{2}\1\d{4}(?![\w-])(?! \d)"), is_ssn),
    Pattern(
        "phone",
        "number",
        re.compile(
            r"(?<![\w.+/=-])(?:\+\d{1,3}[ .-]?(?:\(0?\d{1,4}\)[ .-]?)?\d(?:[ ./-]?\d){6,12}"
            r"|\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}[.-]\d{3}[.-]\d{4}|0\d{2,4}[ /-]\d{3,4}[ -]?\d{3,5})(?![\w-])(?! ?\d)"
        ),
        is_phone,
    ),
    Pattern(
        "ip_address",
        "word",
        re.compile(
            r"(?<![\w.:])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\w]|\.\d)"
            r"|(?:[0-9a-fA-F]{1,4}:){2,7}:?[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,5}(?![\w:]))"
        ),
        is_public_address,
    ),
)

SECRETS: Final[tuple[Pattern, ...]] = (
    Pattern("aws_key", "word", re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z2-7]{16}(?![A-Za-z0-9])")),
    Pattern(
        "github_token", "word", re.compile(r"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_\w{36,244})", re.ASCII)
    ),
    Pattern("gitlab_token", "word", re.compile(r"(?<!\w)glpat-[\w-]{20,64}", re.ASCII)),
    Pattern("slack_token", "word", re.compile(r"(?<!\w)xox[abeoprs]-[A-Za-z0-9-]{10,200}", re.ASCII)),
    Pattern("google_key", "word", re.compile(r"(?<!\w)AIza[\w-]{35}(?![\w-])", re.ASCII)),
    Pattern("stripe_key", "word", re.compile(r"(?<!\w)[sr]k_(?:live|test)_[A-Za-z0-9]{16,247}", re.ASCII)),
    Pattern(
        "model_key",
        "word",
        re.compile(r"(?<!\w)sk-(?:[a-z]{2,10}-)?(?:[a-z0-9]{1,8}-)?[A-Za-z0-9_-]{20,200}", re.ASCII),
        is_varied,
    ),
    Pattern("package_token", "word", re.compile(r"(?<!\w)(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,240})", re.ASCII)),
    Pattern("jwt", "word", re.compile(r"(?<!\w)eyJ[\w-]{8,200}\.eyJ[\w-]{8,200}(?:\.[\w-]{0,90})?", re.ASCII)),
    Pattern("url_password", "word", re.compile(r"(?<=://)[^\s/:@]{0,64}:[^\s/@]{3,128}(?=@[\w.-])", re.ASCII), None),
    Pattern(
        "assigned",
        "word",
        re.compile(
            r"[APSaps](?<![A-Za-z0-9].)(?i:(?<=a)(?:pi[_-]?key|ccess[_-]?token|uth[_-]?token)"
            r"|(?<=s)ecret(?:[_-]?key)?|(?<=p)(?:assw(?:or)?d|wd))"
            r"[\"']{0,2}[=:][\"']?[^\s\"'<>{},;]{8,160}"
        ),
        lambda text: is_varied(re.split("[=:]", text, maxsplit=1)[1]),
    ),
)

# In every match of a kind, which is one word: one of these texts or patterns, which begin with a single rare character.
HINTS: Final[dict[str, tuple[str | re.Pattern[str], ...]]] = {
    "email": ("@",),
    "ip_address": (re.compile(r"\.\d{1,3}\.\d{1,3}\."), re.compile(":[0-9a-fA-F]{1,4}:")),
    "aws_key": (re.compile("A(?:KIA|SIA|GPA|IDA|ROA)"),),
    "github_token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "gitlab_token": ("glpat-",),
    "slack_token": ("xox",),
    "google_key": ("AIza",),
    "stripe_key": ("k_live_", "k_test_"),
    "model_key": ("sk-",),
    "package_token": ("npm_", "pypi-"),
    "jwt": ("eyJ",),
    "url_password": ("://",),
    "assigned": (  # behind the last letters of its names, or a quote
        re.compile(r"=(?<=[YTNDytnd\"'].)"),
        re.compile(r":(?<=[YTNDytnd\"'].)"),
    ),
}
NUMBERS: Final = re.compile(
    r"\d(?<!\d\d)(?:[ ().\-/_*,;:|~+#=]{0,3}\d){7,}", re.ASCII
)  # in every match of these kinds, all of its digits
AROUND_NUMBER: Final = 4  # code points beside it that belong to a match, or are checked by one
NUMBERED: Final = frozenset({"credit_card", "us_ssn", "phone"})

# A private key is long and has lines: its first line is enough, and where it ends cannot be known while it is written.
PRIVATE_KEY: Final = tuple(
    f"-----begin {kind}private key{block}-----"
    for kind, block in (
        *((kind, "") for kind in ("", "rsa ", "ec ", "dsa ", "openssh ", "encrypted ")),
        ("pgp ", " block"),
    )
)

NAMED: Final = ("person", "location")  # what only a model finds
PII_KINDS: Final = (*dict.fromkeys(pattern.kind for pattern in PII), *NAMED)
SECRET_KINDS: Final = (*(pattern.kind for pattern in SECRETS), "private_key")
