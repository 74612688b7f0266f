"""Words as keyed hashes: the same word is the same in one store, and nothing in another."""

from __future__ import annotations

from persistence.passages.words import QUERY_WORDS_MAX, hashed, indexed_text, query_words, words

ONE, OTHER = b"1" * 16, b"2" * 16


def test_forms_of_a_word_are_one_and_common_words_are_none() -> None:
    assert list(words("The Cats and a cat's CAT: Straßen, naïve")) == ["cat", "cat", "s", "cat", "strassen", "naiv"]
    assert list(words("studies studied running runs raised raise rates rate glasses glass"))[4:] == [
        *("rais", "rais", "rat", "rat", "glass", "glass")
    ]
    assert list(words("")) == [] and list(words("漢字 テスト")) == ["漢字", "テスト"]


def test_a_hash_is_letters_and_its_stores_alone() -> None:
    assert hashed("fox", ONE).isalpha() and len(hashed("fox", ONE)) == 16
    assert hashed("fox", ONE) != hashed("fox", OTHER)
    text = indexed_text("A fox, a fox and a dog", ONE).split()
    assert text == [hashed("fox", ONE), hashed("fox", ONE), hashed("dog", ONE)]


def test_a_query_is_its_longest_words_once_each() -> None:
    assert query_words("fox fox elephants", ONE) == [hashed("elephant", ONE), hashed("fox", ONE)]
    assert len(query_words(" ".join(f"word{number}" for number in range(50)), ONE)) == QUERY_WORDS_MAX
    assert query_words("of the and", ONE) == []
