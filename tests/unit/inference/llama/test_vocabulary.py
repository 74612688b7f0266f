"""The bytes of tokens that are no whole characters: read from the model file, and recovered from text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.llama.vocabulary import ByteFragments, read_vocabulary, token_pieces

PIECES = {
    10: b"\xf0\x9f",
    11: b"\x98",
    12: b"\x80",
    13: b"\xf0",
    14: b"\x9f\x98",
    15: b" \xe6",
    16: b"\x97\xa5",
    17: b"ab",
}


@given(st.lists(st.sampled_from([10, 11, 12, 13, 14, 15, 16]), min_size=2, max_size=6))
def test_whatever_is_found_has_the_bytes_that_were_asked_for(ids: list[int]) -> None:
    data = b"".join(PIECES[token] for token in ids)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    found = ByteFragments(iter(PIECES.items())).recover(text, len(ids), ids[-1])
    assert tuple(ids) in found
    assert all(b"".join(PIECES[token] for token in other) == data for other in found)


def test_byte_level_and_sentencepiece_vocabularies_are_read() -> None:
    byte_level = read_vocabulary(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["ðŁ", "ĺ", "Ģ", "Ġb", "<|end|>", "æĹ¥"],
            "tokenizer.ggml.token_type": [1, 1, 1, 1, 3, 1],
            "tokenizer.ggml.eos_token_id": 4,
        }
    )
    assert byte_level.fragments.recover("😀", 3, 2) == [(0, 1, 2)]
    assert byte_level.specials == ("<|end|>",) and byte_level.eos_text == "<|end|>"
    assert not byte_level.adds_bos and not byte_level.adds_space
    pieces = read_vocabulary(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁a"],
            "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 6, 6, 1],
            "tokenizer.ggml.bos_token_id": 1,
        }
    )
    assert pieces.fragments.recover("😀", 4, 6) == [(3, 4, 5, 6)]
    assert pieces.adds_bos and pieces.adds_space and pieces.bos_text == "<s>"


def test_every_token_has_the_bytes_that_it_adds_and_control_tokens_none() -> None:
    byte_level = token_pieces(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["ðŁ", "Ġb", "<|end|>", "<tool call>", "日"],
            "tokenizer.ggml.token_type": [1, 1, 3, 4, 1],
        }
    )
    assert byte_level.text == [b"\xf0\x9f", b" b", b"", b"<tool call>", "日".encode()]
    assert byte_level.spelled == [b"\xf0\x9f", b" b", b"\xff<|end|>", b"<tool call>", "日".encode()]
    pieces = token_pieces(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<unk>", "</s>", "<0xF0>", "\u2581a\u2581", "<0xF0>"],
            "tokenizer.ggml.token_type": [2, 3, 6, 1],
        }
    )
    assert pieces.text == [b"", b"", b"\xf0", b" a ", b"<0xF0>"]
    assert pieces.spelled[:2] == [b"\xff<unk>", b"\xff</s>"]
