"""The checks behind the patterns: what looks like a number of a kind, and is one."""

from __future__ import annotations

import pytest

from inference.moderation.patterns import (
    PII,
    SECRETS,
    is_card_number,
    is_iban,
    is_phone,
    is_public_address,
    is_ssn,
    is_varied,
)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("4111 1111 1111 1111", True),
        ("4111-1111-1111-1112", False),
        ("٤١١١ ١١١١ ١١١١ ١١١١", True),  # digits of other scripts are digits
        ("0000 0000 0000 0000", False),  # passes the checksum, and is nobody's
        ("0000 1111 2222 3333 4444", False),  # 20 digits
        ("79927398713", False),  # 11
        ("000004111111111111111", False),
    ],
)
def test_card_numbers_pass_luhn(text: str, right: bool) -> None:
    assert is_card_number(text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("DE89 3704 0044 0532 0130 00", True),
        ("GB29-NWBK-6016-1331-9268-19", True),
        ("DE89 3704 0044 0532 0130 01", False),
        ("DE89 3704 0044 0532 0130 00 EUR", True),  # a candidate runs on into the words behind it
        ("DE89 3704 0044 0532", False),
        ("OM81 0180 0000 0129 9123 456", True),
        ("ZZ89 3704 0044 0532 0130 00", False),
    ],
)
def test_ibans_have_their_countrys_length_and_pass_iso_7064(text: str, right: bool) -> None:
    assert is_iban(text) is right


@pytest.mark.parametrize(
    ("text", "right"),
    [("078-05-1120", True), ("536 90 4399", True), ("666-05-1120", False), ("900-05-1120", False),
     ("078-00-1120", False), ("078-05-0000", False)],
)  # fmt: skip
def test_social_security_numbers_that_were_never_given_out_are_none(text: str, right: bool) -> None:
    assert is_ssn(text) is right


def test_phones_addresses_and_placeholders() -> None:
    assert is_phone("+49 30 901820") and not is_phone("111-111-1111") and not is_phone("12345678")
    assert is_public_address("203.0.113.77") and is_public_address("2001:db8::1")
    assert not any(map(is_public_address, ("127.0.0.1", "::1", "0.0.0.0", "224.0.0.1", "1:2")))
    assert is_varied("Zx81kQpW77uu") and not is_varied("xxxxxxxxxxxx") and not is_varied("your-key-here-123")


def test_a_pattern_finds_its_kind_and_no_part_of_a_longer_word() -> None:
    by_kind = {each.kind: each.regex for each in (*PII, *SECRETS)}
    assert by_kind["credit_card"].search("card 4111 1111 1111 1111, please") is not None
    assert by_kind["credit_card"].search("v4.4111111111111111") is None
    assert by_kind["aws_key"].search("xAKIAIOSFODNN7EXAMPLE") is None
    assert by_kind["us_ssn"].search("part 1-078-05-1120") is None
