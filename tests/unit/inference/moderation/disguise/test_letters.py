"""What letters a character may stand for."""

from __future__ import annotations

from inference.moderation.disguise.letters import LATIN, SIGNS, letter_forms, several


def test_each_letter_has_forms_of_many_scripts() -> None:
    forms, readings = letter_forms()
    assert set(forms) == set(LATIN) and all(len(those) > 5 for those in forms.values())
    assert {"卂", "ɐ", "₳", "ᗩ"} <= set(forms["a"])
    assert set("il") <= set(readings["ɩ"])


def test_a_character_with_one_reading_becomes_its_letter_and_one_with_several_their_sign() -> None:
    assert "Ａ𝐛Ⓒ".translate(SIGNS) == "abc"
    sign = "ɩ".translate(SIGNS)
    assert len(sign) == 1 and sign in several().values() and not sign.isascii()


def test_what_stands_between_letters_and_what_is_not_seen_is_dropped() -> None:
    assert "a\u0301\u200b.b c\u20dd—d\U000e0101‽e🪴f_g".translate(SIGNS) == "abcdefg"
    assert "|a|!".translate(SIGNS) == "|a|!"
