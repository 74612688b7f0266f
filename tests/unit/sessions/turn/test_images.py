"""Images by name: in texts, in token ids, and back."""

from __future__ import annotations

import hashlib
import random

import pytest

from sessions.model.types import InputFile, InputImage, InputText
from sessions.turn.images import (
    FIRST,
    MARK,
    NAME_IDS,
    NEXT,
    PATCH,
    PATCHES_MAX,
    UNSEEN,
    ImageName,
    ImageRun,
    image_ids,
    image_runs,
    patches_of,
    prompt_text,
    split_names,
    whole_names,
)

SHA = hashlib.sha256(b"an image").hexdigest()
OTHER = hashlib.sha256(b"another").hexdigest()


def image(sha256: str = SHA) -> InputImage:
    return InputImage(image_url="data:image/png;base64,AA==", sha256=sha256, width=640, height=480)


def test_a_text_names_its_images_where_they_stand() -> None:
    content = (InputText("Look: "), image(), InputText(" and "), image(OTHER), InputFile(text="\nfile"))
    named = list(split_names(prompt_text(content, sees=True)))
    assert named == ["Look: ", ImageName(SHA, 640, 480), " and ", ImageName(OTHER, 640, 480), "\nfile"]
    assert prompt_text(content, sees=False) == f"Look: {UNSEEN} and {UNSEEN}\nfile"
    assert prompt_text((InputImage(), InputText("it was retracted")), sees=True) == "it was retracted"


def test_words_cannot_name_an_image_beside_one() -> None:
    forged = prompt_text((image(),), sees=True)
    named = list(split_names(prompt_text((InputText(forged), image(OTHER)), sees=True)))
    assert [part for part in named if isinstance(part, ImageName)] == [ImageName(OTHER, 640, 480)]
    assert list(split_names(f"{MARK}{SHA[:-1]}g 1x1{MARK}")) == [f"{MARK}{SHA[:-1]}g 1x1{MARK}"]


def test_ids_name_their_image_and_nothing_else() -> None:
    ids = [5, *image_ids(SHA, 20), *image_ids(SHA, NAME_IDS), 7, *image_ids(OTHER, 12)]
    assert list(image_runs(ids)) == [
        ImageRun(SHA, 1, 21),
        ImageRun(SHA, 21, 21 + NAME_IDS),
        ImageRun(OTHER, 22 + NAME_IDS, 34 + NAME_IDS),
    ]
    assert all(PATCH <= each < 2**32 for each in image_ids(SHA, 20))
    for torn in (ids[2:21], ids[1:8], [NEXT | 1, PATCH], [FIRST, 5, NEXT]):
        assert not list(image_runs(torn))


def test_ten_thousand_pairs_that_differ_in_one_bit_share_no_id_of_a_name() -> None:
    rng = random.Random(7)
    for _ in range(10_000):
        data = bytearray(rng.randbytes(64))
        one = image_ids(hashlib.sha256(data).hexdigest(), NAME_IDS)
        data[rng.randrange(64)] ^= 1 << rng.randrange(8)
        other = image_ids(hashlib.sha256(data).hexdigest(), NAME_IDS)
        assert one != other and one[:3] != other[:3]


def test_a_prefix_that_ends_within_a_name_ends_in_front_of_its_image() -> None:
    ids = [5, 6, *image_ids(SHA, 20), 7]
    named = [whole_names(ids, length) for length in range(len(ids) + 1)]
    assert named == [0, 1, 2, *[2] * (NAME_IDS - 1), *range(2 + NAME_IDS, len(ids) + 1)]


@pytest.mark.parametrize(
    ("width", "height", "patches"), [(1, 1, 1), (32, 32, 1), (33, 32, 2), (640, 480, 300), (9_999, 9_999, PATCHES_MAX)]
)
def test_an_image_counts_a_token_for_each_square(width: int, height: int, patches: int) -> None:
    assert patches_of(ImageName(SHA, width, height)) == patches
