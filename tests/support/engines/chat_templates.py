"""Chat templates of model families, written for these tests after the families' rules: none is copied.

Each keeps what makes its family's prompts hard: what it refuses, what it rewrites, where it puts tools, how it thinks,
in which words it writes calls. They lie in the folder `families`, one file each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FAMILIES: Final[dict[str, str]] = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parent / "families").glob("*.jinja"))
}
SPECIALS: Final = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|eot_id|>",
    "<|end|>",
    "[INST]",
)
