"""Models get an image of every format and mode upright, opaque, small and without metadata."""

from __future__ import annotations

import random

import pytest
from PIL import Image, ImageCms

from inference.images.decoding import decode_image
from sessions.model.errors import BadInput, TooLarge
from sessions.model.knowledge.images import DECODED_BYTES_MAX, DecodedImage
from testbed.images.made import a_gif, a_pattern, a_png, encoded, noise, opened

MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("1", "L", "P", "RGB"),
}
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
ROW_AND_COLUMN = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}
"""EXIF's orientation says where the first row and the first column of what is stored belong."""


def decode(content: bytes, edge_max: int = 1568) -> DecodedImage:
    return decode_image(content, edge_max)


def pixels(content: bytes) -> bytes:
    image = opened(content)
    assert image.mode == "RGB"
    return image.tobytes()


@pytest.mark.parametrize(("format", "mode"), [(format, mode) for format, modes in MODES.items() for mode in modes])
def test_every_format_in_every_mode(format: str, mode: str) -> None:
    source = encoded(a_pattern(mode), format, **({"lossless": True} if format == "WEBP" else {}))
    image = decode(source)
    again = opened(image.data)
    assert (image.width, image.height) == again.size == (40, 30)
    assert image.media_type == ("image/jpeg" if format == "JPEG" else "image/png") == Image.MIME[again.format or ""]
    assert again.mode == "RGB" and decode(source) == image
    if format != "JPEG" and mode not in ("LA", "RGBA", "I;16"):
        assert pixels(image.data) == opened(source).convert("RGB").tobytes()


def test_transparency_is_laid_onto_white() -> None:
    clear = Image.new("RGBA", (2, 1), (*RED, 0))
    clear.putpixel((1, 0), (0, 0, 0, 128))
    for format in ("PNG", "WEBP"):
        shown = opened(decode(encoded(clear, format, **({"lossless": True} if format == "WEBP" else {}))).data)
        assert [shown.getpixel((x, 0)) for x in (0, 1)] == [WHITE, (127, 127, 127)]
    for mode, key in (("L", 7), ("RGB", (7, 7, 7))):
        keyed = Image.new(mode, (2, 1), key)
        assert opened(decode(encoded(keyed, transparency=key)).data).getpixel((1, 0)) == WHITE
    keyed = Image.new("P", (2, 1), 3)
    keyed.putpalette([90] * 768)
    for format in ("PNG", "GIF"):
        assert opened(decode(encoded(keyed, format, transparency=3)).data).getpixel((0, 0)) == WHITE


def test_sixteen_bits_become_the_higher_eight() -> None:
    source = Image.frombytes("I;16", (4, 1), bytes((0, 0, 255, 0, 0, 128, 255, 255)))
    assert pixels(decode(encoded(source)).data)[::3] == bytes((0, 0, 128, 255))


@pytest.mark.parametrize("orientation", ROW_AND_COLUMN)
def test_an_image_comes_out_upright(orientation: int) -> None:
    upright = a_pattern(size=(30, 20))
    row, column = ROW_AND_COLUMN[orientation]
    raw = upright.tobytes()
    grid = [[raw[at : at + 3] for at in range(90 * y, 90 * y + 90, 3)] for y in range(20)]
    if row in ("left", "right"):
        grid = [list(line) for line in zip(*grid, strict=True)]
    grid = grid[::-1] if row in ("right", "bottom") else grid
    grid = [line[::-1] for line in grid] if column in ("right", "bottom") else grid
    stored = Image.frombytes("RGB", (len(grid[0]), len(grid)), b"".join(pixel for line in grid for pixel in line))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for format, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        image = decode(encoded(stored, format, exif=exif, **options))
        assert (image.width, image.height) == (30, 20) and pixels(image.data) == upright.tobytes()
    image = decode(encoded(stored, "JPEG", exif=exif), edge_max=15)
    assert (image.width, image.height) == (15, 10)


def test_nothing_of_the_metadata_is_left() -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x013B], exif[0x8298] = "SECRET maker", "SECRET artist", "SECRET owner"
    exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 29.6), 27: b"SECRET place"})
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    photo, packet = a_pattern(), b"<x:xmpmeta>SECRET</x:xmpmeta>"
    for source in (
        encoded(photo, "JPEG", exif=exif, comment=b"SECRET", icc_profile=profile, xmp=packet, dpi=(301, 301)),
        encoded(photo, "WEBP", exif=exif, icc_profile=profile, xmp=packet),
        encoded(photo, "PNG", exif=exif, icc_profile=profile, pnginfo=_texts(), dpi=(301, 301)),
        encoded(photo.convert("P"), "GIF", comment=b"SECRET"),
    ):
        assert b"SECRET" in source
        data = decode(source).data
        assert b"SECRET" not in data and b"Exif" not in data and b"eXIf" not in data and b"ICC" not in data
        assert set(opened(data).info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
        assert 301 not in opened(data).info.get("jfif_density", ())


def _texts() -> object:
    from PIL.PngImagePlugin import PngInfo

    texts = PngInfo()
    texts.add_text("Author", "SECRET")
    texts.add_itxt("XML:com.adobe.xmp", "SECRET")
    return texts


def test_a_colour_profile_is_applied() -> None:
    """In this profile red and blue have changed places."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = profile.replace(b"rXYZ", b"????", 1).replace(b"bXYZ", b"rXYZ", 1).replace(b"????", b"bXYZ", 1)
    for format, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 95})):
        shown = opened(decode(encoded(Image.new("RGB", (9, 9), RED), format, icc_profile=swapped, **options)).data)
        red, _, blue = shown.getpixel((4, 4))  # type: ignore[misc]
        assert red < 10 and blue > 245, format
    clear = Image.new("RGBA", (1, 1), (*RED, 0))
    assert opened(decode(encoded(clear, icc_profile=swapped)).data).getpixel((0, 0)) == WHITE


def test_a_profile_that_cannot_be_used_counts_as_none() -> None:
    photo = a_pattern()
    gray = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for profile in (b"x", random.Random(1).randbytes(900), gray):
        assert decode(encoded(photo, icc_profile=profile)) == decode(encoded(photo))


def test_metadata_that_is_damaged_refuses_no_image() -> None:
    for exif in (b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + random.Random(2).randbytes(90)):
        assert decode(encoded(a_pattern(), "JPEG", exif=exif)) == decode(encoded(a_pattern(), "JPEG"))


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in (RED, GREEN, BLUE)]
    for format, options in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})):
        source = encoded(frames[0], format, save_all=True, append_images=frames[1:], duration=50, **options)
        assert getattr(opened(source), "n_frames", 1) == 3
        assert pixels(decode(source).data) == bytes(RED) * 24, format
    assert pixels(decode(a_gif(1, 1, 5_000)).data) == bytes(GREEN)
    pair = encoded(a_pattern(), "MPO", save_all=True, append_images=frames)  # as some cameras write
    assert opened(pair).format == "MPO" and decode(pair).media_type == "image/jpeg"


def test_images_are_scaled_down_and_never_up() -> None:
    for size, edge_max, expected in (
        ((1, 1), 1568, (1, 1)),
        ((1568, 3), 1568, (1568, 3)),
        ((1569, 1569), 1568, (1568, 1568)),
        ((3000, 2000), 1568, (1568, 1045)),
        ((2000, 3000), 1568, (1045, 1568)),
        ((16384, 1), 1568, (1568, 1)),
        ((1, 16384), 100, (1, 100)),
        ((300, 200), 1, (1, 1)),
    ):
        image = decode(encoded(Image.new("L", size, 9)), edge_max)
        assert (image.width, image.height) == expected == opened(image.data).size


def test_the_result_has_a_maximal_size() -> None:
    loud = noise((1500, 1400))
    png, jpeg = decode(encoded(loud)), decode(encoded(loud, "JPEG", quality=95))
    assert png.media_type == jpeg.media_type == "image/jpeg"
    assert all(len(image.data) <= DECODED_BYTES_MAX for image in (png, jpeg))
    calm = decode(encoded(a_pattern(size=(600, 600)), "JPEG", quality=95))
    assert opened(calm.data).quantization == opened(encoded(noise((8, 8)), "JPEG", quality=90)).quantization  # type: ignore[attr-defined]
    assert (calm.width, calm.height) == (600, 600)


def test_one_bit_of_one_pixel_makes_another_result() -> None:
    rng, base = random.Random(3), bytearray(a_pattern(size=(64, 48)).tobytes())
    plain = decode(encoded(Image.frombytes("RGB", (64, 48), bytes(base))))
    results = {plain.data}
    for _ in range(50):
        changed = bytearray(base)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        results.add(decode(encoded(Image.frombytes("RGB", (64, 48), bytes(changed)))).data)
    assert len(results) > 45, "a bit that is drawn twice makes the same image"
    assert pixels(plain.data) == bytes(base)


def test_the_name_of_an_encoding_says_nothing() -> None:
    """A PNG gives the same image however its pixels were packed."""
    assert decode(encoded(a_pattern(), compress_level=0)) == decode(encoded(a_pattern(), compress_level=9))


@pytest.mark.parametrize(
    ("width", "height", "says"), [(100_000, 100_000, "pixels"), (16_385, 1, "an edge"), (5_001, 5_000, "25,000,000")]
)
def test_what_claims_to_be_too_large_is_refused_before_it_is_decoded(width: int, height: int, says: str) -> None:
    sources = [a_png(width, height, b"")]
    if max(width, height) < 1 << 16:
        sources.append(a_gif(width, height, 1))
    for source in sources:
        with pytest.raises(TooLarge, match=says) as refused:
            decode(source)
        assert refused.value.code == "image_too_complex"


NO_IMAGES = [b"", b"x", b"%PDF-1.7", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"RIFF\0\0\0\0AVI "]


@pytest.mark.parametrize("content", [*NO_IMAGES, "BMP", "TIFF", "ICO", "PPM", "JPEG2000", "AVIF", "TGA"])
def test_what_is_no_image_or_of_another_format_is_refused(content: bytes | str) -> None:
    with pytest.raises(BadInput, match=r"^image_type_unsupported: "):
        decode(content if isinstance(content, bytes) else encoded(a_pattern(), content))
