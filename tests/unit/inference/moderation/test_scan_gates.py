"""No cheap look hides a hit: the scan with its gates finds what the scan without them finds, place by place."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.moderation.input_filter import scan_message
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Scanner
from tests.support import disguises_second
from tests.support.disguises import LOOKS, METHODS, MORE, OVER, PHRASES, disguised, ordinary
from tests.support.ungated_scan import scan_ungated

SIDE = PolicySide(
    phrases=PhraseRule(deny=PHRASES[:6], allow=("project nightjar museum",)), pii=KindsRule(), secrets=KindsRule()
)
SCANNER = Scanner(SIDE)
SECRETS = (
    "ana@mail.example", "4111 1111 1111 1111", "4.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1", "DE89 3704 0044 0532 0130 00",
    "+49 30 90182012", "536-90-4399", "v3.1.99.7", "93.184.216.34", "2001:db8::ff00:42:8329", "1.2.3.4.5", "abcd:1:2:3",
    "AKIAIOSFODNN7EXAMPL2", "ghp_" + "a1B2c3D4e5" * 4, "glpat-Ab3dEf6hIj9lMn2pQr5t", "xoxb-1234567890-AbCdEfGh",
    "AIza" + "Sy1Abc2" * 5, "sk_live_4eC39HqLyjWDarjtT1zd", "sk-proj-Ab3dEf6hIj9lMn2pQr5tUv8x", "npm_" + "aB3dE6" * 6,
    "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ", "https://ana:s3cr3tPW@db.example", "password='Tr0ub4dor&3x'",
    "api_key: Zx81kLm29QwEr", "-----BEGIN RSA PRIVATE KEY-----", "prjoect nighjtar", "pr*ject nightjar",
)  # fmt: skip
ORDINARY = [*ordinary(300)]
METHOD_TEXTS = st.builds(disguised, st.sampled_from([*METHODS, *MORE]), st.sampled_from(PHRASES[:6]))
TWICE_HIDDEN = st.builds(disguised, st.sampled_from([*LOOKS]), st.sampled_from(PHRASES[:6]), st.sampled_from([*OVER]))
SECOND_TEXTS = st.builds(
    disguises_second.disguised, st.sampled_from([*disguises_second.METHODS]), st.sampled_from(PHRASES[:6])
)
PIECES = st.one_of(
    METHOD_TEXTS,
    TWICE_HIDDEN,
    SECOND_TEXTS,
    st.sampled_from(SECRETS),
    st.integers(0, len(ORDINARY) - 1).map(ORDINARY.__getitem__),
    st.text("<>&\\%*~`_[]()+={}$\"'.:;-/@#!|0123456789abnrtuxAFJU \n\t\u0130\u0660é漢\u202f", max_size=24),
    st.text(max_size=8),
    st.builds(lambda text, at: text[at:], st.sampled_from(SECRETS), st.integers(1, 12)),
)
TEXTS = st.lists(st.tuples(PIECES, st.sampled_from(["", " ", "  ", "\n", ", ", "=", '"', "漢"])), max_size=6).map(
    lambda parts: "".join(piece + joint for piece, joint in parts)
)


@given(TEXTS)
@settings(max_examples=60, deadline=None)
@example("x" * 9_000 + " ana@mail.example")
@example("9" * 7 + " 12345678")
def test_no_gate_hides_a_hit(text: str) -> None:
    assert scan_message(SCANNER, text) == scan_ungated(SIDE, text)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "see {}.", "é{}é", "a{}", "x {}, and {} once more"])
def test_a_hint_finds_all_words_that_a_pattern_finds(secret: str, around: str) -> None:
    text = around.format(secret, secret)
    assert scan_message(SCANNER, text) == scan_ungated(SIDE, text)
