"""Shows images to vLLM: replaces the ids that name an image by the tokens and tensors that vLLM has for it.

vLLM's processor for the model makes tensors of an image and says which tokens stand for it. Here each image is
processed alone, in a prompt that is nothing but the text for one image, and then put in its place. So nothing looks for
places in a conversation, whose other tokens may be the same: a model may write them in an answer.

    ids     <|im_start|> user \\n FIRST|h0 NEXT|h1 ... PATCH PATCH      What ...
    vLLM    <|im_start|> user \\n <fake>   <image> ... <image> <fake>   What ...

On the device vLLM names blocks by the whole hash of each image in them. Names of images that a request does not have,
and torn names, are left out. Images are processed in a thread; a session's are kept until it is released, within a
bound.
"""

from __future__ import annotations

import array
import asyncio
import base64
import dataclasses
import hashlib
import io
import json
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import structlog
from PIL import Image
from vllm.inputs.engine import mm_input
from vllm.model_executor.model_loader import get_model_cls
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import ProcessorInputs, TimingContext
from vllm.utils.jsontree import json_iter_leaves
from vllm.utils.torch_utils import set_default_torch_num_threads

from inference.tokens import names_images, without_images
from inference.vllm.model_folder import VllmModel
from sessions.model.knowledge.images import EDGE_MAX, unreadable_image
from sessions.model.types import InputImage, SessionKey
from sessions.turn.images import NAME_IDS, ImageName, image_ids, image_runs

log = structlog.get_logger(__name__)

KIND: Final = "image"  # vLLM's word for what an image is among its modalities
KEPT_BYTES_MAX: Final = 256 << 20  # of processed images
SIZES_MAX: Final = 4096  # sizes of images whose lengths are kept
LONG: Final = 8_192  # tokens: a longer prompt is searched in a thread


class ProcessedImage(NamedTuple):
    """An image as vLLM takes it: the tokens that stand for it, vLLM's note on which of them get its embeddings, and the
    tensors."""

    tokens: tuple[int, ...]
    place: Any
    tensors: Any


class PlacedImage(NamedTuple):
    """An image in a prompt, and the index of its first token."""

    begin: int
    sha256: str
    image: ProcessedImage


class SeenPrompt(NamedTuple):
    """A prompt with as many ids as vLLM has tokens, in which images have names, and these images.

    `named` is how many leading ids tell which KV belongs to them: -1 for all of them and those that follow, or those
    in front of the first image that has fewer tokens than a name has ids."""

    tokens: array.array[int]
    images: tuple[PlacedImage, ...]
    named: int


class VllmImages:
    """Processes the images of one model. `close` it at the end."""

    def __init__(self, processor: Any, text: str, fingerprint: str) -> None:
        """`text`: how a prompt for this model says that there is an image. `fingerprint`: that of everything on which
        the processor's results depend."""
        self.fingerprint = fingerprint
        self._processor = processor
        self._text: list[int] = list(processor.info.get_tokenizer().encode(text, add_special_tokens=False))
        self._lengths: dict[tuple[int, int], int] = {}
        self._kept: OrderedDict[tuple[SessionKey, str], tuple[ProcessedImage, int]] = OrderedDict()
        self._kept_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def length(self, image: ImageName) -> int:
        """Returns how many tokens an image takes. A size that no decoded image has is that of the largest."""
        size = max(1, min(image.width, EDGE_MAX)), max(1, min(image.height, EDGE_MAX))
        length = self._lengths.get(size)
        if length is None:
            loop = asyncio.get_running_loop()
            length = self._lengths[size] = await loop.run_in_executor(self._thread, self.blank_length, size)
            if len(self._lengths) > SIZES_MAX:
                del self._lengths[next(iter(self._lengths))]
        return length

    async def show(self, key: SessionKey, prompt: array.array[int], images: Sequence[InputImage]) -> SeenPrompt:
        """Returns a session's prompt with those of the images that it names."""
        if not names_images(prompt):
            return SeenPrompt(prompt, (), -1)
        known = {image.sha256: image.image_url for image in images if image.image_url}
        runs = await asyncio.to_thread(list, image_runs(prompt)) if len(prompt) > LONG else image_runs(prompt)
        tokens, placed, named, at = array.array("I"), list[PlacedImage](), -1, 0
        for run in runs:
            url = known.get(run.sha256)
            if url is None:
                continue
            tokens.extend(without_images(prompt[at : run.begin]))
            image = await self._processed(key, run.sha256, url)
            if len(image.tokens) < NAME_IDS and named < 0:
                named = len(tokens)
            placed.append(PlacedImage(len(tokens), run.sha256, image))
            tokens.extend(image_ids(run.sha256, max(len(image.tokens), NAME_IDS))[: len(image.tokens)])
            at = run.end
        tokens.extend(without_images(prompt[at:]))
        return SeenPrompt(tokens, tuple(placed), named)

    def forget(self, key: SessionKey) -> None:
        """Drops a session's images."""
        for name in [name for name in self._kept if name[0] == key]:
            self._kept_bytes -= self._kept.pop(name)[1]

    async def _processed(self, key: SessionKey, sha256: str, url: str) -> ProcessedImage:
        name = key, sha256
        kept = self._kept.get(name)
        if kept is not None:
            self._kept.move_to_end(name)
            return kept[0]
        image = await asyncio.get_running_loop().run_in_executor(self._thread, self._open, url)
        if name not in self._kept:
            size = sum(getattr(leaf, "nbytes", 0) for leaf in json_iter_leaves(image.tensors.get_data()))
            self._kept[name] = image, size
            self._kept_bytes += size
            while self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= self._kept.popitem(last=False)[1][1]
        return image

    # -- in the thread -------------------------------------------------------------------------------------------------

    def blank_length(self, size: tuple[int, int]) -> int:
        """Returns how many tokens an image of this size takes. Blocking."""
        return len(self._process(Image.new("RGB", size)).tokens)

    def _open(self, url: str) -> ProcessedImage:
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
            return self._process(image.convert("RGB"))

    def _process(self, image: Image.Image) -> ProcessedImage:
        try:
            items = self._processor.info.parse_mm_data({KIND: [image]})
            with set_default_torch_num_threads():
                inputs = ProcessorInputs(list(self._text), items, {KIND: ["-"]})
                made = self._processor.apply(inputs, TimingContext(enabled=False))
            (place,), (tensors,) = made["mm_placeholders"][KIND], made["mm_kwargs"][KIND]
        except Exception as exc:  # models' processors raise errors of any kind
            log.warning("image_refused", engine="vllm", reason=str(exc)[:200])
            width, height = image.size
            raise unreadable_image(f"the model takes none of {width} times {height} pixels") from exc
        return ProcessedImage(tuple(made["prompt_token_ids"]), place, tensors)


def make_images(model_config: Any, model: VllmModel) -> VllmImages | None:
    """Returns what shows images to a model that vLLM has loaded. Returns None if the model sees none, and, with a line
    in the log, if it cannot be shown any here. Blocking."""
    if not model_config.supports_multimodal_inputs:
        return None
    images: VllmImages | None = None
    try:
        processor = MULTIMODAL_REGISTRY.create_processor(model_config)
        if not processor.info.allowed_mm_limits.get(KIND):
            return None  # it hears, or was told to see nothing
        kind = get_model_cls(model_config)
        text, second = (kind.get_placeholder_str(KIND, number) for number in (1, 2))
        if processor.info.supported_mm_limits[KIND] is not None or not text or text != second:
            raise ValueError("its images are numbered, few, or without a place in the prompt")
        settings = json.dumps(model_config.multimodal_config.mm_processor_kwargs, sort_keys=True, default=str)
        name = hashlib.blake2b(f"{model.processor}\0{settings}\0{text}".encode(), digest_size=12).hexdigest()
        images = VllmImages(processor, text, name)
        images.blank_length((EDGE_MAX, EDGE_MAX))
    except Exception as exc:  # noqa: BLE001 - models' processors raise errors of any kind
        log.warning("images_disabled", engine="vllm", reason=f"{type(exc).__name__}: {exc}"[:200])
        if images is not None:
            images.close()
        return None
    return images


def engine_input(prompt: list[int], images: Sequence[PlacedImage], salt: str) -> dict[str, Any]:
    """Returns a prompt as vLLM's own renderer would hand it to the engine. `images` are those that it names. `salt` is
    the cache salt of its blocks, and of the images' names, so that no other session's encoded images are used."""
    salted: dict[str, Any] = {"cache_salt": salt} if salt else {}
    if not images:
        return {"type": "token", "prompt_token_ids": prompt, **salted}
    tokens = list(prompt)
    for begin, _, image in images:
        tokens[begin : begin + len(image.tokens)] = image.tokens
    places = [dataclasses.replace(image.place, offset=begin + image.place.offset) for begin, _, image in images]
    names = [f"{salt}-{sha256}" for _, sha256, _ in images]
    tensors = {KIND: [image.tensors for _, _, image in images]}
    return {**mm_input(tokens, tensors, {KIND: names}, {KIND: places}), **salted}
