"""Letters written with other signs: one sign as several letters, several signs as one."""

from __future__ import annotations

import pytest

from inference.moderation.disguise.lattice import PHRASES_MAX, LatticePhrases

PHRASES = LatticePhrases(("Project Nightjar", "velvet hammer clause", "short"))


@pytest.mark.parametrize(
    "text",
    [
        r"|>|20j3c7 |\|16#7j4r",
        "pr0j3c+ n!9h7j@r",
        "卩尺ㄖﾌ乇匚ㄒ 几丨Ꮆ卄ㄒﾌ卂尺",
        "₱ⱤØJɆ₵₮ ₦ł₲Ⱨ₮J₳Ɽ",
        "ρяσנє¢т ηιgнтנαя",
        "ɹɐɾʇɥƃᴉu ʇɔǝɾoɹd",
        r"v3l\/37 ]-[@|\/|/\/\€12 c|^|_|$3",
        "velvet harnmer cliiii".replace("cliiii", "claiise"),
    ],
)
def test_a_phrase_in_other_signs_is_found_where_it_stands(text: str) -> None:
    before = "so, what about "
    assert list(PHRASES.find(f"{before}{text} ?")) == [(len(before), len(before) + len(text))]


@pytest.mark.parametrize(
    "text",
    [
        "project nightjar",
        "projectnightjar",
        "sh0rt",
        "velvet 4 hammer",
        "xpr0ject nightjar",
        "pr0ject         nightjar",
    ],
)
def test_plain_words_are_not(text: str) -> None:
    assert list(PHRASES.find(text)) == []


def test_a_number_is_no_phrase() -> None:
    phrases = LatticePhrases(("to sell it all",))
    assert list(phrases.find("a 70 53113 17 a11")) == []
    assert list(phrases.find("70 s3ll 17 a11")) == [(0, 14)]


def test_phrases_beyond_the_most_are_left_to_the_other_ways() -> None:
    many = [
        f"secret number {chr(97 + index % 26)}{chr(97 + index // 26 % 26)}{index // 676 * 'z'}" for index in range(9)
    ]
    phrases = LatticePhrases((*many * (PHRASES_MAX // 9), *many[:1], "velvet hammer"))
    assert list(phrases.find("v3lvet hammer")) == []


@pytest.mark.parametrize("text", ["i", "|", "a|", "s1l1", "^a", "ᑌ", "vv", "rn1", "||_", "🪴"])
def test_what_repeats_costs_little(text: str) -> None:
    assert list(PHRASES.find((text * 2_000)[:2_000])) == []
