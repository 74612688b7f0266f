"""Salts the blocks of a request in two parts: an opening that sessions have in common, and what is its session's own.

vLLM's prefix cache finds a block by a hash over what stands before it too, and salts the first block alone, so a whole
request. Here the first block carries the opening's tag and the first one behind the opening the session's:

    block:   0          1 ... n-1      n             n+1 ...
    salt:    opening    -              session       -

So of two sessions that name the same opening the first n blocks have the same hashes, and no later one: not even where
their tokens are the same. Sessions of other tenants have openings of other names, and share nothing.

Images are named in the blocks that they fill, as vLLM names them.

It fails closed: a request that this was not done for is salted with its session's tag as a whole, and shares nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, hash_block_tokens

_SALT: Final = "cache_salt"  # as vLLM calls it among what it hashes with a block


class PartedHasher:
    """Replaces vLLM's block hasher in one request: the shared prefix has another salt than the rest."""

    def __init__(
        self, hash_function: Callable[[Any], bytes], block_tokens: int, *, opening: str, opening_blocks: int
    ) -> None:
        self._hash_function = hash_function
        self._block_tokens = block_tokens
        self._opening = opening
        self._opening_blocks = opening_blocks

    def __call__(self, request: Any) -> list[Any]:
        """Returns the hashes of the request's full blocks that were not hashed yet."""
        return self.hashes(
            request, len(request.block_hashes), request.block_hashes[-1] if request.block_hashes else None
        )

    def hashes(self, request: Any, first: int, parent: Any) -> list[Any]:
        """Returns the hashes of the full blocks from `first` on; `parent` is the hash of the block before it."""
        size = self._block_tokens
        made: list[Any] = []
        for index in range(first, request.num_tokens // size):
            tokens = request.all_token_ids[index * size : (index + 1) * size]
            parent = hash_block_tokens(self._hash_function, parent, tokens, self._keys(request, index))
            made.append(parent)
        return made

    def _keys(self, request: Any, index: int) -> tuple[Any, ...] | None:
        begin = index * self._block_tokens
        keys: tuple[Any, ...] | None = generate_block_hash_extra_keys(request, begin, begin + self._block_tokens, 0)[0]
        salt = {0: self._opening, self._opening_blocks: request.cache_salt}.get(index)
        if salt is None:
            return keys
        return (*(key for key in keys or () if key[0] != _SALT), (_SALT, salt))


def salt_in_parts(request: Any, hash_function: Callable[[Any], bytes], block_tokens: int) -> None:
    """Gives a request that names a shared prefix (`RequestTransfer`) the block hashes that all its sharers have."""
    named = request.kv_transfer_params or {}
    opening, count = str(named.get("opening") or ""), int(named.get("opening_blocks") or 0)
    if not opening or count <= 0 or not request.cache_salt or not request.block_hashes:
        return
    hasher = PartedHasher(hash_function, block_tokens, opening=opening, opening_blocks=count)
    request.block_hashes, request._block_hasher = hasher.hashes(request, 0, None), hasher
