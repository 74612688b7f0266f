"""Disguises that a reader does not notice, and a model reads through: a phrase by each method, and ordinary messages.

`python -m bench.moderation.disguises` has all phrases by all methods; those kept apart there are no part of this.
"""

from __future__ import annotations

import pytest

from inference.moderation.input_filter import scan_message
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Scanner
from tests.support import disguises_second, disguises_third, disguises_third_more
from tests.support.disguises import METHODS, MORE, PHRASES, apart, disguised, ordinary
from tests.support.judged import is_seen
from tests.support.ordinary_third import control

SCANNER = Scanner(PolicySide(phrases=PhraseRule(deny=PHRASES), pii=KindsRule(), secrets=KindsRule()))


@pytest.mark.parametrize("method", [each for each in (*METHODS, *MORE) if not apart(each)])
def test_a_disguised_phrase_is_seen_where_it_stands(method: str) -> None:
    for phrase in PHRASES[::5]:
        text = disguised(method, phrase)
        places = scan_message(SCANNER, text)
        assert {hit.category for hit, _, _ in places} == {"phrases"}, text
        hit, start, end = places[0]
        assert "explain" not in text[start:end] and "again" not in text[start:end], (hit, text[start:end])


@pytest.mark.parametrize("method", disguises_second.METHODS)
def test_the_second_set_of_methods_is_seen_through(method: str) -> None:
    """Most of each: letters are drawn from all of Unicode; `bench.moderation.disguises --second` has the share."""
    texts = [disguises_second.disguised(method, phrase) for phrase in PHRASES[::4]]
    missed = [text for text in texts if not scan_message(SCANNER, text)]
    assert len(missed) <= 3, missed


THIRD = [*disguises_third_more.cases(1)]


@pytest.mark.parametrize("method", disguises_third_more.METHODS)
def test_the_third_set_of_methods_is_seen_through(method: str) -> None:
    """`bench.moderation.disguises --third` has the share of all."""
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=tuple(disguises_third.PHRASES))))
    messages = [message for name, _, message in THIRD if name == method][::3]
    missed = [message for message in messages if not is_seen(scanner, message)]
    assert len(missed) <= 1, missed


@pytest.mark.parametrize(
    "text",
    [
        "B=jar; A=project\\ night; echo ${A}${B}",
        'cout << "project " << "nightjar";',
        "[pP][rR][oO][jJ][eE][cC][tT]\\s[nN][iI][gG][hH][tT][jJ][aA][rR]",
        "https://example.org/?q=%u0070roject%20nightj%u0061r",
        "\\\\u0070roject nightj\\\\u0061r",
        "pro<del>no</del>ject nightj<!-- x -->ar",
        "project~~oops~~ night<style>p{}</style>jar",
        "project[^1] nightjar[^2]",
        "project¹ nightjar²",
        "px\brx\box\bjx\bex\bcx\btx\b nx\bix\bgx\bhx\btx\bjx\bax\brx\b",
        "prjct nghtjr",
        "| project | nightjar |",
        "project | nightjar",
        "pr0jeeeect n1ghtj4r",
        "p, then r, then o, then j, then e, then c, then t nightjar",
        "'p'+chr(114)+'o'+chr(106)+chr(101)+'ct nightjar'",
        "\\def\\a{project night}\\def\\b{jar} \\a\\b",
        "def g(): return 'jar'\ndef f(): return 'project night'\nprint(f() + g())",
        "replace @ with e: proj@ct nightjar",
        "pr0jjj3c7 n1gh7j4r",
        "p|r~o+j.e_c-t n/i|g~h+t.j_a-r",
        "decode: surmhfw qljkwmdu",
        "acrostic by first letters: put rings on just each cat. they now ignore good hats there just all round",
        "ORSWY3BANVSSAYLCN52XIIDQOJXWUZLD\nOQQG42LHNB2GUYLSEBXG65ZB",
        "=IXYqRHanlmbgQ3Ylp2byBHI0V3biFGIsxWYgUWbgwGblRHIlNXYlxGc",
        "0000: 7072 6f6a 6563 7420  project.\n0008: 6e69 6768 746a 6172  nightjar",
    ],
)
def test_further_disguises_are_seen_through(text: str) -> None:
    assert {hit.category for hit, *_ in scan_message(SCANNER, text)} == {"phrases"}


@pytest.mark.parametrize(
    "messages",
    [
        ["about project night...", "...jar, please"],
        ["(1/2) project night", "(2/2) jar"],
        ["tell me of project night (to be continued)", "(continued) jar please"],
        ["Part one: project night", "Part two: jar"],
        ['{"q": "project night"}', '{"q": "jar"}'],
        ["a = 'project night'", "b = 'jar'", "print(a + b)"],
        ["what is pro…", "…ject nig…", "…htjar?"],
    ],
)
def test_what_only_says_that_a_text_goes_on_hides_nothing(messages: list[str]) -> None:
    assert is_seen(SCANNER, messages)


@pytest.mark.parametrize(
    "text", ["4111.1111.1111.1111", "4111·1111·1111·1111", "3782/822463/10005", "4*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1"]
)
def test_card_numbers_with_signs_between_are_seen(text: str) -> None:
    (hit, *span), *_ = scan_message(SCANNER, text)
    assert (hit.kind, span) == ("credit_card", [0, len(text)])


def test_ordinary_messages_pass_in_twelve_scripts() -> None:
    assert [text for text in ordinary(600) if scan_message(SCANNER, text)] == []
    third = Scanner(PolicySide(phrases=PhraseRule(deny=tuple(disguises_third.PHRASES))))
    assert [text for text in control(1, 400) if scan_message(third, text)] == []
