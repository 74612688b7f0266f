"""What `--model` may say, and which files of a repository are the model."""

from __future__ import annotations

import pytest

from inference.models.reference import HubModel, RepoFile, choose_files, is_safe, parse_reference
from sessions.model.errors import BadInput

GGUFS = ("m-F16.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-F16.gguf")
SPLIT = tuple(f"big/m-Q8_0-0000{part}-of-00003.gguf" for part in (1, 2, 3))


def files(*names: str) -> list[RepoFile]:
    return [RepoFile(name, 1) for name in names]


def chosen(model: HubModel, *names: str, kind: str = "gguf") -> list[str]:
    return [file.name for file in choose_files(model, files(*names), "gguf" if kind == "gguf" else "folder")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:Qwen/Qwen3-4B-GGUF", HubModel("Qwen/Qwen3-4B-GGUF")),
        ("hf:a/b:Q8_0", HubModel("a/b", file="Q8_0")),
        ("hf:a/b@v1.2:sub/m.gguf", HubModel("a/b", "v1.2", "sub/m.gguf")),
        ("model.gguf", None),
        ("/models/hf:a/b", None),
    ],
)
def test_a_reference_is_read_and_written_alike(text: str, expected: HubModel | None) -> None:
    assert parse_reference(text) == expected
    if expected is not None:
        assert str(expected) == text


@pytest.mark.parametrize("text", ["hf:", "hf:model", "hf:a/b/c", "hf:a/../b", "hf:../b:m.gguf", "hf:a/b:../../m.gguf"])
def test_what_is_no_reference_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_reference(text)
    assert "hf:ORG/REPO" in error.value.public_message


def test_one_quantisation_is_chosen_and_another_can_be_named() -> None:
    assert chosen(HubModel("a/b"), *GGUFS) == ["m-Q4_K_M.gguf"]
    assert chosen(HubModel("a/b", file="q8_0"), *GGUFS) == ["m-Q8_0.gguf"]
    assert chosen(HubModel("a/b", file="m-Q4_0.gguf"), *GGUFS) == ["m-Q4_0.gguf"]
    assert chosen(HubModel("a/b"), "only.gguf", "tokenizer_config.json", "x/chat_template.jinja") == [
        "only.gguf",
        "tokenizer_config.json",
    ]


def test_a_model_in_parts_comes_whole_or_not_at_all() -> None:
    assert chosen(HubModel("a/b"), *GGUFS[:1], *SPLIT) == list(SPLIT)
    with pytest.raises(BadInput, match="2 of the 3 parts"):
        chosen(HubModel("a/b"), *SPLIT[:2])


def test_what_cannot_be_chosen_is_refused_with_what_there_is() -> None:
    ggufs: tuple[tuple[HubModel, tuple[str, ...], str], ...] = (
        (HubModel("a/b", file="Q2_K"), GGUFS, "Name one of m-F16.gguf"),
        (HubModel("a/b", file="F16"), ("x-F16.gguf", "y-F16.gguf"), "several such files"),
        (HubModel("a/b"), ("config.json", "model.safetensors"), "--engine vllm"),
    )
    for model, names, sentence in ggufs:
        with pytest.raises(BadInput) as error:
            chosen(model, *names)
        assert sentence in error.value.public_message
    folders: tuple[tuple[HubModel, tuple[str, ...], str], ...] = (
        (HubModel("a/b"), GGUFS, "--engine llama"),
        (HubModel("a/b"), ("config.json", "pytorch_model.bin"), "needs config.json"),
        (HubModel("a/b", file="x"), ("config.json",), "leave the file out"),
    )
    for model, names, sentence in folders:
        with pytest.raises(BadInput) as error:
            chosen(model, *names, kind="folder")
        assert sentence in error.value.public_message


@pytest.mark.parametrize(
    "name", ["", "../m.gguf", "/m.gguf", "a/../../m.gguf", "a\\..\\m.gguf", "a//m.gguf", "m\0.gguf"]
)
def test_a_name_that_leaves_its_folder_is_left_out(name: str) -> None:
    assert not is_safe(name)
    assert chosen(HubModel("a/b"), "m.gguf", name) == ["m.gguf"]
