from __future__ import annotations

import pytest

from sessions.model.pattern_size import pattern_size


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 1),
        ("abc", 3),
        ("^abc$", 5),
        ("a{10}", 10),
        ("a{2,5}", 5),
        ("a{7,}", 8),
        ("(ab{3}){10}", 40),
        ("((a{10}){10}){10}", 1_000),
        ("a{10}{10}", 100),
        ("(a|b)+", 2),
        (r"\{10}", 4),
        ("a{x}", 4),
        ("[a-z{9}]", 4),
        ("[]{9}]{2}", 8),
        (r"\d{3}", 30),
        (r"\p{L}{2}", 20),
        ("(a{100}", 100),
        ("a)b{3}", 5),
    ],
)
def test_size_is_that_of_the_pattern_written_out(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


def test_size_does_not_grow_without_end() -> None:
    assert pattern_size("(" * 300 + "a" + "){999999999}" * 300) == 10**12
    assert pattern_size("\\") == 1 and pattern_size("[") >= 1 and pattern_size("\\p{") >= 1
