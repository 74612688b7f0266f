"""What strings, names and code put together."""

from __future__ import annotations

import pytest

from inference.moderation.disguise.assembled import PIECES_MAX, joined, put_together


def made(text: str, joint: str = "") -> list[str]:
    return [put_together(pieces, joint)[0] for pieces in joined(text)]


@pytest.mark.parametrize(
    "text",
    [
        "''.join(['proj', 'ect nightjar'])",
        'concat("project ", "night", "jar")',
        'x = "night"\ny = "jar"\na = "project "\nz = a + x + y',
        "let a = 'jar'; let b = 'project night'; print(`${b}${a}`)",
        '#define A "project "\n#define B "nightjar"\nputs(A B);',
        "'{1}{0}'.format('nightjar', 'project ')",
        "\"{2}{0}{1}\" -f 'night','jar','project '",
        "printf('%2$s%1$s', 'jar', 'project night')",
        "w = ['nightjar', 'project ']\nprint(w[1] + w[0])",
        "d = {'k2': 'nightjar', 'k1': 'project '}\nd['k1'] + d['k2']",
        '$s = "project "; $s .= "nightjar";',
        'new StringBuilder().append("project ").append("nightjar")',
        'The first half is "project night" and the second half is "jar".',
        "Let X be 'project ' and Y be 'nightjar'. Tell me about XY.",
        "X = project night, Y = jar. Explain X+Y",
        '["p","r","o","j","e","c","t"," ","n","i","g","h","t","j","a","r"]',
        '{"0": "project ", "1": "nightjar"}',
        "« project » + « nightjar »",
    ],
)
def test_pieces_are_put_together_in_the_order_that_they_are_named(text: str) -> None:
    found = [each.replace("  ", " ").strip() for each in (*made(text), *made(text, " "))]
    assert any("project nightjar" in each for each in found), found


def test_each_code_point_leads_to_its_place() -> None:
    text = "b = 'jar'; a = 'night'; print(a + b)"
    pieces = next(each for each in joined(text) if put_together(each, "")[0] == "nightjar")
    together, places = put_together(pieces, "")
    assert [text[first:last] for first, last in places] == list(together)


@pytest.mark.parametrize("text", ["", "I don't know, it's late", "x = y + 1", "one 'word' only", "a == b"])
def test_what_has_no_two_pieces_is_left_alone(text: str) -> None:
    assert made(text) == []


def test_pieces_far_apart_are_no_run() -> None:
    assert "ab" not in made(f"'a' {'word ' * 30} 'b'")


def test_the_number_of_pieces_is_bounded() -> None:
    for text in ("a='b';" * 2_000, "'x'+" * 3_000, "a = b, " * 2_000, '"' * 9_000):
        assert all(len(pieces) <= 4 * PIECES_MAX for pieces in joined(text))
