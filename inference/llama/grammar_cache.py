"""Guards the vocabulary that llama.cpp's grammar engine keeps for the whole process.

llama.cpp makes a tokenizer for grammars from a model's vocabulary, keeps the last one, and recognises it by the
vocabulary's address. In a process with several models that goes wrong in two ways: a model that is loaded after another
was freed often has its address, so its answers are held to the other's tokens, or llama.cpp aborts the process because
the sizes differ; and two servers that begin an answer in a fixed format at the same time free the same tokenizer.

So one server of a process at a time has grammars of llama.cpp's, the first that wants one. The others have theirs from
`grammar_guide`. Before another server gets them, llama.cpp is given two passing copies of vocabularies. The first is of
the model that the tokenizer was made from, so that it fits whether or not the copy has the remembered address; from
then on the remembered address is the copy's. The second is of the new model, at another address, as both are loaded; so
are the server's own vocabulary and both copies, hence nothing is mistaken for it either.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Final, NamedTuple

from inference.llama.library import Signatures, UnknownBuild, model_parameters, open_library

_NEW_GRAMMAR: Final = "_Z22llama_sampler_init_llgPK11llama_vocabPKcS3_"
_SIGNATURES: Final[Signatures] = {
    _NEW_GRAMMAR: (ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)),
    "llama_model_get_vocab": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "llama_sampler_free": (None, (ctypes.c_void_p,)),
}


class GrammarCache:
    """The owner of llama.cpp's grammar tokenizer: at most one live server of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: object | None = None
        self._source: _ModelFile | None = None  # which the tokenizer was made from

    def is_owned_by(self, server: object) -> bool:
        return self._owner is server

    def claim(self, server: object, model_path: Path) -> bool:
        """Returns whether a server, whose model is loaded, may have grammars of llama.cpp's. Blocking, for about a
        second if another server had them before."""
        with self._lock:
            if self._owner is None:
                if self._source is not None and not _replace_tokenizer(self._source, model_path):
                    return False
                self._owner, self._source = server, _ModelFile.at(model_path)
            return self._owner is server

    def release(self, server: object) -> None:
        """Gives the grammars back, after the server has ended its threads."""
        with self._lock:
            if self._owner is server:
                self._owner = None


GRAMMAR_CACHE: Final = GrammarCache()


class _ModelFile(NamedTuple):
    """A model file as it was when a server had loaded it."""

    path: Path
    changed_ns: int  # -1: it was not there any more
    num_bytes: int

    @classmethod
    def at(cls, path: Path) -> _ModelFile:
        try:
            status = path.stat()
        except OSError:
            return cls(path, -1, 0)
        return cls(path, status.st_mtime_ns, status.st_size)


def _replace_tokenizer(before: _ModelFile, model_path: Path) -> bool:
    """Has llama.cpp replace its tokenizer, made from the file `before`, by that of a copy of another file's vocabulary.
    Returns whether it could."""
    if before.changed_ns < 0 or _ModelFile.at(before.path) != before:
        return False
    try:
        library = open_library(_SIGNATURES)
        parameters = model_parameters(library, vocabulary_only=True)
    except UnknownBuild:
        return False
    copies: list[int] = []
    for path in (before.path, model_path):
        copy = library.llama_model_load_from_file(str(path).encode(), parameters)
        if copy is None:
            break
        copies.append(copy)
        grammar = getattr(library, _NEW_GRAMMAR)(library.llama_model_get_vocab(copy), b"lark", b'start: "a"')
        library.llama_sampler_free(grammar)
    for copy in copies:
        library.llama_model_free(copy)
    return len(copies) == 2
