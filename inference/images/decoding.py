"""Decodes an image that somebody sent and encodes it anew, by Pillow. Pure but for Pillow's own limit of pixels.

What models are given is always RGB: their preprocessing drops an alpha channel, or lays it onto white as is done here.
An image without metadata shows what its sender saw, so orientation and colour profile are applied before they go; what
is damaged in metadata counts as absent, what is damaged in the image refuses it. Every size is read from the header and
judged before memory is taken for pixels. Images of different pixels give different results, unless scaling,
transparency or JPEG loses the difference.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Final, Literal

from PIL import ExifTags, Image, ImageCms, MpoImagePlugin, TiffImagePlugin, WebPImagePlugin  # noqa: F401 - formats

from sessions.model.knowledge.images import (
    DECODED_BYTES_MAX,
    PIXELS_MAX,
    SOURCE_EDGE_MAX,
    DecodedImage,
    too_complex_image,
    unsupported_image,
)

QUALITIES: Final = (90, 80, 70, 60, 50, 40, 30)
_WHITE: Final = (255, 255, 255)
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF's orientation
_HIGH_BYTES: Final = [value >> 8 for value in range(1 << 16)]
_SRGB: Final = ImageCms.createProfile("sRGB")

Image.preinit()
Image.MAX_IMAGE_PIXELS = PIXELS_MAX // 2  # Pillow refuses what has twice as many, also where it decodes while it opens


def decode_image(content: bytes, edge_max: int, bytes_max: int = DECODED_BYTES_MAX) -> DecodedImage:
    """Decodes an image's first frame, makes it upright, opaque, sRGB and no longer than `edge_max` pixels at an edge,
    and encodes it anew in at most `bytes_max`. Raises BadInput and TooLarge; any other error of the library means a
    damaged image."""
    kind = format_of(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image, turn = _first_frame(content, kind, edge_max)
        except Image.DecompressionBombError as exc:
            raise too_complex_image(f"it has more than {PIXELS_MAX:,} pixels") from exc
        image = _srgb(image)
        if turn is not None:
            image = image.transpose(turn)
        image.info.clear()
        return _encoded(image, lossless=kind != "JPEG", bytes_max=bytes_max)


def format_of(content: bytes) -> Literal["PNG", "JPEG", "WEBP", "GIF"]:
    """Returns an image's format by its first bytes. Raises BadInput for a format that is not read here."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if content.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    raise unsupported_image("it is no PNG, JPEG, WebP or GIF")


def _first_frame(content: bytes, kind: str, edge_max: int) -> tuple[Image.Image, Image.Transpose | None]:
    """Returns the first frame in mode L, RGB, RGBA or CMYK, scaled, and how it is to be turned. Raises TooLarge."""
    with Image.open(io.BytesIO(content), formats=(kind,)) as file:
        if max(file.size) > SOURCE_EDGE_MAX:
            raise too_complex_image(f"an edge has more than {SOURCE_EDGE_MAX:,} pixels")
        file.load()
        return _scaled(_plain(file), edge_max), _turn(file)


def _turn(image: Image.Image) -> Image.Transpose | None:
    try:
        return _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - what cannot be read of metadata is not there
        return None


def _plain(image: Image.Image) -> Image.Image:
    """Returns an image in mode L, RGB, RGBA or CMYK."""
    if image.mode in ("I;16", "I"):
        image = image.convert("I").point(_HIGH_BYTES, "L")
        image.info.pop("transparency", None)
    mode = "RGBA" if image.has_transparency_data else image.mode if image.mode in ("L", "CMYK") else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _scaled(image: Image.Image, edge_max: int) -> Image.Image:
    edge = max(image.size)
    if edge <= edge_max:
        return image
    width, height = (max(1, (side * edge_max + edge // 2) // edge) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _srgb(image: Image.Image) -> Image.Image:
    """Returns an image in mode RGB and the colour space sRGB, on white where it is transparent."""
    alpha = image.getchannel("A") if image.mode == "RGBA" else None
    if alpha is not None:
        image = image.convert("RGB")
    profile = image.info.get("icc_profile")
    if profile:
        with contextlib.suppress(ImageCms.PyCMSError):
            image = ImageCms.profileToProfile(image, io.BytesIO(profile), _SRGB, outputMode="RGB") or image
    image = image.convert("RGB")
    if alpha is None:
        return image
    canvas = Image.new("RGB", image.size, _WHITE)
    canvas.paste(image, (0, 0), alpha)
    return canvas


def _encoded(image: Image.Image, *, lossless: bool, bytes_max: int) -> DecodedImage:
    """Encodes an image: as PNG if that is wanted and small enough, else as JPEG of the best quality that is."""
    if lossless and len(data := _saved(image, "PNG", compress_level=6)) <= bytes_max:
        return DecodedImage("image/png", data, *image.size)
    while True:
        for quality in QUALITIES:
            data = _saved(image, "JPEG", quality=quality, subsampling="4:2:0")
            if len(data) <= bytes_max:
                return DecodedImage("image/jpeg", data, *image.size)
        image = _scaled(image, max(image.size) * 3 // 4)


def _saved(image: Image.Image, format: str, **options: int | str) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()
