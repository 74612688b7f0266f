"""Of two sessions that name the same opening its blocks have the same hashes, and no other ones."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from inference.vllm.scheduling.block_salts import salt_in_parts

pytestmark = [pytest.mark.vllm]

BLOCK = 4
SHA = get_hash_fn_by_name("sha256")
init_none_hash(SHA)
TOKENS = list(range(18))  # four blocks and a half


def request(
    tokens: list[int], salt: str, opening: str = "", blocks: int = 0, lora: Any = None, images: Any = None
) -> Request:
    transfer = {"tag": salt, "name": "x", "opening": opening, "opening_blocks": blocks}
    params = SamplingParams(max_tokens=50, extra_args={"kv_transfer_params": transfer})
    hasher = get_request_block_hasher(BLOCK, SHA)
    more: dict[str, Any] = {"cache_salt": salt, "lora_request": lora, "mm_features": images, "block_hasher": hasher}
    return Request("r", tokens, params, None, **more)


def salted(*given: Any, **named: Any) -> list[Any]:
    made = request(*given, **named)
    salt_in_parts(made, SHA, BLOCK)
    return list(made.block_hashes)


def test_an_openings_blocks_have_its_hashes_and_what_follows_its_sessions() -> None:
    one, other = salted(TOKENS, "one", "opening", 2), salted(TOKENS, "other", "opening", 2)
    assert len(one) == 4
    assert one[:2] == other[:2] and not set(one[2:]) & set(other[2:])
    assert one == salted(TOKENS, "one", "opening", 2)
    for stranger in (salted(TOKENS, "one", "another", 2), salted(TOKENS, "one")):
        assert not set(stranger) & set(one)
    longer = salted(TOKENS, "one", "opening", 3)
    assert longer[:2] == one[:2] and not set(longer[2:]) & set(one[2:])


def test_what_is_decoded_behind_an_opening_is_its_sessions() -> None:
    hashes = []
    for session in ("one", "other"):
        made = request(TOKENS[:9], session, "opening", 2)
        salt_in_parts(made, SHA, BLOCK)
        assert len(made.block_hashes) == 2
        for token in TOKENS[9:]:
            made.append_output_token_ids(token)
        assert made.block_hashes == salted(TOKENS, session, "opening", 2)
        hashes.append(made.block_hashes)
    assert hashes[0][:2] == hashes[1][:2] and not set(hashes[0][2:]) & set(hashes[1][2:])


def test_images_name_the_blocks_that_they_fill_and_all_behind() -> None:
    """A request with images once shared no opening."""
    place = PlaceholderRange(offset=9, length=5)
    of = {}
    for image in ("", "x", "y"):
        features = [MultiModalFeatureSpec(data=None, modality="image", identifier=image, mm_position=place)]
        made = request(TOKENS, "one", "opening", 2, images=features if image else None)
        salt_in_parts(made, SHA, BLOCK)
        of[image] = list(made.block_hashes)
    assert of[""][:2] == of["x"][:2] == of["y"][:2]
    assert len({tuple(hashes[2:]) for hashes in of.values()}) == 3
    assert not set(of["x"][2:]) & set(of["y"][2:])


def test_an_adapter_has_hashes_of_its_own() -> None:
    adapters = [LoRARequest(name, 1, f"/{name}") for name in ("a", "b")]
    of = [salted(TOKENS, "one", "opening", 2, lora=adapter) for adapter in (*adapters, None)]
    assert len(set().union(*of)) == 12


def test_what_names_no_opening_or_cannot_be_salted_keeps_vllms_hashes() -> None:
    plain = request(TOKENS, "one")
    before = list(plain.block_hashes)
    salt_in_parts(plain, SHA, BLOCK)
    assert plain.block_hashes == before
    short = request(TOKENS[:3], "one", "opening", 0)
    salt_in_parts(short, SHA, BLOCK)
    assert short.block_hashes == []

    def fails(_: Any) -> bytes:
        raise RuntimeError("broken")

    named = request(TOKENS, "one", "opening", 2)
    with pytest.raises(RuntimeError):
        salt_in_parts(named, fails, BLOCK)
    named.append_output_token_ids([18, 19])
    assert named.block_hashes == [*before, named.block_hashes[4]], "all of it its session's own"
