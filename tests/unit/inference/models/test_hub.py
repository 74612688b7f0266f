"""Pulls against a stand-in of the hub: cut connections, wrong bytes, a full disk; never a broken model in place."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from inference.models.hub import Hub, Progress
from inference.models.library import ModelLibrary
from inference.models.reference import HubModel, parse_reference
from sessions.model.errors import SessileError
from tests.support.engines.hub_server import HubRepo, HubServer

GGUF = random.Random(1).randbytes(300_000)
MODEL = HubModel("acme/tiny", file="tiny-Q4_K_M.gguf")
Pull = Callable[..., Any]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        server.repos["acme/tiny"] = HubRepo(
            {
                "README.md": b"# Tiny",
                "tiny-Q4_K_M.gguf": GGUF,
                "tiny-Q8_0.gguf": GGUF[::-1],
                "chat_template.jinja": b"{{ messages }}",
                "pytorch_model.bin": b"pickled",
            }
        )
        yield server


@pytest.fixture
def pull(hub: HubServer, tmp_path: Path) -> Pull:
    def once(model: HubModel = MODEL, kind: Any = "gguf", **options: Any) -> Any:
        library = ModelLibrary(tmp_path)
        return Hub(library, pause=lambda _: None, endpoint=hub.url, **options).pull(model, kind)

    return once


def in_place(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "hub").rglob("*") if path.is_file())


def refused(pull: Pull, *arguments: Any, **options: Any) -> SessileError:
    with pytest.raises(SessileError) as error:
        pull(*arguments, **options)
    return error.value


def test_a_model_is_pulled_once_with_its_template_and_its_licence(pull: Pull, hub: HubServer, tmp_path: Path) -> None:
    seen: list[Progress] = []
    pulled = pull(on_progress=seen.append)
    assert pulled.path.read_bytes() == GGUF and pulled.name == "tiny-Q4_K_M" and pulled.licence == "apache-2.0"
    assert in_place(tmp_path) == ["chat_template.jinja", "pulled.json", "tiny-Q4_K_M.gguf"]
    assert seen[-1].done == seen[-1].total and max(each.total for each in seen) == len(GGUF)
    fetches = len(hub.fetches)
    assert pull() == pulled and len(hub.fetches) == fetches
    assert str(parse_reference(pulled.reference)) == "hf:acme/tiny:tiny-Q4_K_M.gguf"


def test_a_hundred_cuts_cost_a_hundred_tries_and_no_byte_twice(pull: Pull, hub: HubServer, tmp_path: Path) -> None:
    hub.cut_after, hub.cuts_left = 2_500, 100
    assert pull().path.read_bytes() == GGUF
    assert hub.cuts == 100
    begins = [fetch.begin for fetch in hub.fetches if fetch.name == "tiny-Q4_K_M.gguf"]
    assert begins == sorted(begins) and begins[-1] > 100 * 1_000, "each try goes on where the last one ended"
    assert in_place(tmp_path) == ["chat_template.jinja", "pulled.json", "tiny-Q4_K_M.gguf"]


def test_a_killed_pull_is_resumed(pull: Pull, hub: HubServer, tmp_path: Path) -> None:
    def killed(progress: Progress) -> None:
        if progress.file.endswith(".gguf"):
            raise KeyboardInterrupt

    hub.cut_after, hub.cuts_left = 100_000, 1
    with pytest.raises(KeyboardInterrupt):
        pull(on_progress=killed)
    assert in_place(tmp_path) == [] and ModelLibrary(tmp_path).models() == []
    assert pull().path.read_bytes() == GGUF
    assert hub.fetches[-2].begin > 0, "in another process too"


def test_a_hub_that_ignores_ranges_is_read_from_the_beginning(pull: Pull, hub: HubServer) -> None:
    hub.cut_after, hub.cuts_left, hub.ranges = 100_000, 3, False
    assert pull().path.read_bytes() == GGUF


@pytest.mark.parametrize("name", ["tiny-Q4_K_M.gguf", "chat_template.jinja"])
@pytest.mark.parametrize("change", ["other", "longer"])
def test_wrong_bytes_are_never_put_in_place(pull: Pull, hub: HubServer, tmp_path: Path, name: str, change: str) -> None:
    repo = hub.repos["acme/tiny"]
    right = repo.files[name]
    repo.served[name] = right[:-1] + b"!" if change == "other" else right + b"!"
    error = refused(pull)
    assert error.code == "bad_model_bytes" and name in error.public_message
    assert in_place(tmp_path) == [] and ModelLibrary(tmp_path).models() == []
    repo.served[name] = right
    assert pull().path.read_bytes() == GGUF


def test_damage_in_what_was_left_of_another_day_costs_one_more_fetch(
    pull: Pull, hub: HubServer, tmp_path: Path
) -> None:
    hub.cut_after, hub.cuts_left = 100_000, 1_000

    def give_up(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Hub(ModelLibrary(tmp_path), pause=give_up, endpoint=hub.url).pull(MODEL, "gguf")
    (part,) = tmp_path.rglob("*.incomplete")
    part.write_bytes(bytes(part.stat().st_size))
    hub.cuts_left = 0
    assert pull().path.read_bytes() == GGUF
    assert [fetch.begin > 0 for fetch in hub.fetches if fetch.name.endswith(".gguf")][-2:] == [True, False]


def test_a_full_disk_is_a_sentence_before_and_while_it_fills(
    pull: Pull, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refused(pull, free_bytes=lambda _: 1_000)
    assert error.code == "disk_full" and str(tmp_path) in error.public_message and not hub.fetches

    def fills(progress: Progress) -> None:
        if progress.file.endswith(".gguf"):
            raise OSError(errno.ENOSPC, "No space left on device")

    error = refused(pull, on_progress=fills)
    assert error.code == "disk_full" and "goes on there" in error.public_message
    assert in_place(tmp_path) == []
    assert pull().path.read_bytes() == GGUF


def test_a_hub_that_brings_nothing_is_given_up_with_a_sentence(pull: Pull, hub: HubServer) -> None:
    hub.cut_after, hub.cuts_left = 1, 0
    pull()
    hub.status = 503
    assert "answered 503" in refused(pull).public_message
    hub.status = 0
    del hub.repos["acme/tiny"]
    assert refused(pull).code == "model_unknown"
    hub.repos["acme/tiny"] = HubRepo({"a.gguf": b"x"}, gated=True)
    assert refused(pull).code == "model_gated"
    error = refused(pull, HubModel("acme/tiny", "v9"))
    assert error.code == "model_gated"
    hub.repos["acme/tiny"] = HubRepo({"a.gguf": b"x"})
    assert "no revision 'v9'" in refused(pull, HubModel("acme/tiny", "v9")).public_message


def test_a_folder_for_vllm_has_no_pickles(pull: Pull, hub: HubServer) -> None:
    hub.repos["acme/big"] = HubRepo(
        {
            "config.json": b"{}",
            "model.safetensors": GGUF,
            "model.bin": b"p",
            "../up.json": b"{}",
            "tokenizer.json": b"{}",
        }
    )
    pulled = pull(HubModel("acme/big"), "folder")
    assert sorted(pulled.files) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert pulled.path.is_dir() and pulled.name == "big"


def test_offline_is_a_sentence(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert refused(pull).code == "hub_offline"


@pytest.mark.parametrize("commit", ["../../../..", "", "main", "g" * 40, "a" * 39])
def test_a_commit_that_is_no_hash_is_refused_before_anything_is_written(
    pull: Pull, hub: HubServer, tmp_path: Path, commit: str
) -> None:
    """It becomes the name of a folder: a mirror could write, and remove, outside of the library."""
    hub.repos["acme/tiny"].commit = commit
    before = sorted(tmp_path.rglob("*"))
    assert refused(pull).code == "hub_unavailable"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_error_without_a_text_is_named_by_its_kind(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        raise httpx2.ReadTimeout("")

    monkeypatch.setattr("inference.models.hub.HfApi.model_info", model_info)
    assert "(ReadTimeout)" in refused(pull).public_message
