"""What a text reads like once markup and escapes are undone, and the way back to where it stood."""

from __future__ import annotations

import pytest

from inference.moderation.readings import readings_of

TAGS = "".join(chr(0xE0000 + ord(each)) for each in "hidden")
SELECTORS = "".join(chr(0xE0100 + byte - 16) for byte in b"hidden")


@pytest.mark.parametrize(
    "text",
    [
        "pro**je**ct",
        "pro[je](https://x.example/y)ct",
        "pro[je][1]ct",
        "pro<b class='x'>je</b>ct",
        "pro<!-- x -->ject",
        "pro&#106;ect",
        "pro&amp;#x6a;ect",
        "pro%6aect",
        "pro%256Aect",
        r"pro\u006aect",
        r"pro\u{6a}ect",
        r"pro\x6aect",
        r"pro\152ect",
        r"p\r\o\j\e\c\t",
        "proU+006A ect",
        "pro\x1b[1mject",
        "pro=6Aect",
        "pro=\r\nject",
        "+AHAAcgBvAGoAZQBjAHQ-",
        r"pro\N{LATIN SMALL LETTER J}ect",
        r"pro\00006Aect",
        r"\mathrm{p}ro{j}e\,ct",
        "pro[b]je[/b]ct",
        "pro==je==ct",
        "pro<b title='a > b'></b>ject",
        "pro<![CDATA[]]>ject",
        "pro<i style='display: none'>zz</i>ject",
        '"pro" + "ject"',
        "'pro' 'ject'",
        "${pro}ject",
        "pro&#0000106ect",
    ],
)
def test_what_hides_a_word_is_undone(text: str) -> None:
    assert "project" in [reading.text for reading in readings_of(text)]


@pytest.mark.parametrize(("text", "reading"), [(f"a{TAGS}b", "ahiddenb"), (f"🙂{SELECTORS}", "🙂hidden")])
def test_what_nobody_sees_is_spelled(text: str, reading: str) -> None:
    assert [each.text for each in readings_of(text)] == [text, reading]


def test_blocks_and_escaped_lines_keep_words_apart() -> None:
    assert [each.text for each in readings_of("one<br>two")][1:] == ["one two"]
    assert "one two" in [each.text for each in readings_of(r"one\ntwo")]


@pytest.mark.parametrize("text", ["plain as it is", "don't, 3.14 (and) one-two", "snake_case", "größe 东西"])
def test_ordinary_text_has_one_reading(text: str) -> None:
    assert [each.text for each in readings_of(text)] == [text]


def test_what_is_deeper_than_three_is_left() -> None:
    assert [each.text for each in readings_of("%252525256a")][1:] == ["%256a"]


def test_a_reading_leads_back() -> None:
    _, undone = readings_of("a &#98;<b>c</b>", placed=True)
    assert undone.text == "a bc"
    assert [undone.span(index, index + 1) for index in range(4)] == [(0, 1), (1, 2), (2, 7), (10, 11)]
    assert (undone.span(4, 4), undone.span(0, 0)) == ((11, 11), (0, 0))
    assert next(readings_of("", placed=True)).span(0, 0) == (0, 0)


def test_links_whose_address_has_parentheses_are_undone() -> None:
    text = 'sc[h](/wiki/Main_(page))warz[gel](/a_(b)_c "see")d'
    assert "schwarzgeld" in [reading.text for reading in readings_of(text)]
