"""The bytes of the tokens that are not whole characters, read from the model file.

llama-server holds a streamed token back while its text ends inside a character, and then sends the id of the completing
token only. `ByteFragments.recover` finds the ids in between from the bytes that they must have. Where several splits
are possible the caller decides. A wrong id would cost recomputed tokens at the next turn, never wrong text: the server
compares ids before it reuses KV.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from inference.tokens import byte_alphabet

END_TOKENS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")  # of metadata, where they are set
_CONTROL: Final = {2, 3, 5}  # unknown, control, unused
_NORMAL: Final = 1
_USER_DEFINED: Final = 4
_BYTE: Final = 6
_SPACE: Final = "\u2581"  # SentencePiece's spelling of a space
_CONTROL_LIKE: Final = re.compile(rf"{_SPACE}?[<\[]\S+[>\]\[]")


class ByteFragments:
    """The tokens whose bytes are not UTF-8 by themselves. Immutable after construction."""

    def __init__(self, pieces: Iterator[tuple[int, bytes]]) -> None:
        self._by_bytes: dict[bytes, int] = {}
        self._by_token: dict[int, bytes] = {}
        for token, piece in pieces:
            try:
                piece.decode()
            except UnicodeDecodeError:
                self._by_bytes.setdefault(piece, token)
                self._by_token[token] = piece
        self._longest = max(map(len, self._by_bytes), default=0)

    def __contains__(self, token: int) -> bool:
        return token in self._by_token

    def recover(self, text: str, count: int, last: int) -> list[tuple[int, ...]]:
        """Returns every sequence of `count` ids that ends in `last` and has the bytes of `text`."""
        end = self._by_token.get(last)
        data = text.encode()
        if end is None or not data.endswith(end):
            return []
        return [(*ids, last) for ids in self._splits(data[: len(data) - len(end)], count - 1)]

    def _splits(self, data: bytes, count: int) -> Iterator[tuple[int, ...]]:
        if count == 0:
            if not data:
                yield ()
            return
        for size in range(min(len(data) - count + 1, self._longest), 0, -1):
            token = self._by_bytes.get(data[:size])
            if token is not None:
                for rest in self._splits(data[size:], count - 1):
                    yield (token, *rest)


class Vocabulary(msgspec.Struct, frozen=True):
    """The parts of a tokenizer's metadata that Sessile uses itself; llama.cpp does the encoding."""

    digest: str  # hash of everything that decides how text becomes tokens
    fragments: ByteFragments
    size: int
    specials: tuple[str, ...]  # spellings of control tokens
    special_ids: frozenset[int]
    control_ids: frozenset[int]
    eos_id: int | None
    pieces: tuple[bytes, ...]  # each token's bytes; a control token's spelling
    bos_id: int | None
    bos_text: str
    eos_text: str
    adds_bos: bool
    adds_space: bool  # SentencePiece puts a space before every text that it is given
    control_texts: tuple[str, ...] = ()  # spellings that are tokens only where special tokens are parsed
    control_like: tuple[tuple[int, str], ...] = ()  # other tokens that look like those, with their spellings


class TokenPieces(NamedTuple):
    """The bytes of every token."""

    text: list[bytes]  # each token's bytes in an answer's text
    spelled: list[bytes]  # the same; of control tokens, which add nothing, their spelling behind 0xFF


def token_pieces(metadata: dict[str, Any]) -> TokenPieces:
    """Returns the bytes of every token. Takes about a microsecond a token: call it in a thread."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    kinds: tuple[int, ...] = metadata.get("tokenizer.ggml.token_type", ())
    alphabet = byte_alphabet() if metadata.get("tokenizer.ggml.model") == "gpt2" else None
    text: list[bytes] = []
    spelled: list[bytes] = []
    for token, spelling in enumerate(tokens):
        kind = kinds[token] if token < len(kinds) else 1
        piece = b"" if kind in _CONTROL else _piece(spelling, kind, alphabet)
        text.append(piece)
        spelled.append(b"\xff" + spelling.encode() if kind in _CONTROL else piece)
    return TokenPieces(text, spelled)


def _piece(spelling: str, kind: int, alphabet: dict[str, int] | None) -> bytes:
    if kind == _USER_DEFINED:
        return spelling.encode()
    if kind == _BYTE and len(spelling) == 6:
        return bytes([int(spelling[3:5], 16)])
    if alphabet is None:
        return spelling.replace(_SPACE, " ").encode()
    if all(letter in alphabet for letter in spelling):
        return bytes(alphabet[letter] for letter in spelling)
    return spelling.encode()


def read_vocabulary(metadata: dict[str, Any]) -> Vocabulary:
    """Reads a vocabulary from a model's metadata. Takes about a microsecond a token: call it in a thread."""
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    kinds: tuple[int, ...] = metadata.get("tokenizer.ggml.token_type", ())
    model = metadata.get("tokenizer.ggml.model", "")
    specials = [token for token, kind in enumerate(kinds[: len(tokens)]) if kind in (3, 4)]
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    return Vocabulary(
        digest=_digest(metadata),
        fragments=ByteFragments(_pieces(tokens, kinds, model)),
        size=len(tokens),
        specials=tuple(tokens[token] for token in specials if tokens[token]),
        special_ids=frozenset(specials),
        control_ids=frozenset(token for token in specials if kinds[token] == 3),
        eos_id=eos,
        pieces=tuple(piece.removeprefix(b"\xff") for piece in token_pieces(metadata).spelled),
        bos_id=bos,
        bos_text=tokens[bos] if bos is not None and bos < len(tokens) else "",
        eos_text=tokens[eos] if eos is not None and eos < len(tokens) else "",
        adds_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", model == "llama")),
        adds_space=bool(metadata.get("tokenizer.ggml.add_space_prefix", model == "llama")),
        control_texts=tuple(spelling for spelling, kind in zip(tokens, kinds, strict=False) if kind in (2, 3)),
        control_like=tuple(
            (token, spelling)
            for token, (spelling, kind) in enumerate(zip(tokens, kinds, strict=False))
            if kind in (_NORMAL, _USER_DEFINED) and _CONTROL_LIKE.fullmatch(spelling)
        ),
    )


def _digest(metadata: dict[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(metadata):
        if name.startswith("tokenizer.") and name != "tokenizer.chat_template":
            digest.update(f"{name}\0{metadata[name]!r}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _pieces(tokens: list[str], kinds: tuple[int, ...], model: str) -> Iterator[tuple[int, bytes]]:
    if model == "gpt2":
        alphabet = byte_alphabet()
        for token, text in enumerate(tokens):
            if token < len(kinds) and kinds[token] in _CONTROL:
                continue
            if not text.isascii():  # every byte that is not ASCII is spelled by a letter that is not
                piece = bytes(alphabet[letter] for letter in text if letter in alphabet)
                if len(piece) == len(text):
                    yield token, piece
    else:  # SentencePiece spells lone bytes out; its other pieces are whole characters
        for token, text in enumerate(tokens):
            if token < len(kinds) and kinds[token] == _BYTE and len(text) == 6:
                yield token, bytes([int(text[3:5], 16)])
