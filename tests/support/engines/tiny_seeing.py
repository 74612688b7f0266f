"""A tiny model with random weights that sees images, as a folder that vLLM reads: an Idefics3.

It cuts an image into tiles, so that how many tokens an image takes depends on its shape. Needs torch and transformers,
which only vLLM's environment has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.support.engines.tiny_models import FOLDER_HEAD, HEADS, INNER, LAYERS, WINDOW, write_tiny_folder

IMAGE: Final = "<image>"
TILE_MARKS: Final = ("<fake_token_around_image>", IMAGE, "<end_of_utterance>", "<global-img>")
PATCH, ROW = 14, 8  # a tile is so many patches in a square; four of them are a token
_KIND: Final = "qwen2"


def write_tiny_seeing_folder(
    folder: Path, template: str, specials: tuple[str, ...], *, row: int = ROW, tiles: bool = True
) -> None:
    """Writes a model whose tiles are `row` times `row` patches. `tiles`: whether it cuts images."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    silent = write_tiny_folder(folder, _KIND, template, (*specials, *TILE_MARKS))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    text: dict[str, Any] = json.loads((folder / "config.json").read_text())
    text |= {"hidden_size": HEADS * FOLDER_HEAD, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    text |= {"max_position_embeddings": WINDOW, "pad_token_id": 1}
    edge = row * PATCH
    vision = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Idefics3Config(
        text_config={name: value for name, value in text.items() if name != "architectures"},
        vision_config={**vision, "image_size": edge, "patch_size": PATCH},
        image_token_id=vocabulary[IMAGE],
        pad_token_id=1,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = Idefics3ForConditionalGeneration(config).float()
        for name, weights in model.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(weights, 0, 0.2)
        model.lm_head.weight[sorted(silent)] = 0
    model.save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    preprocessing = {
        "image_processor_type": "Idefics3ImageProcessor",
        "do_image_splitting": tiles,
        "max_image_size": {"longest_edge": edge},
        "size": {"longest_edge": 2 * edge},
        "image_mean": half,
        "image_std": half,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    processor = {"image_seq_len": row * row // 4, "processor_class": "Idefics3Processor"}
    (folder / "processor_config.json").write_text(json.dumps(processor))
