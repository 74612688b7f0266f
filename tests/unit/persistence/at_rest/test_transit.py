"""The key service: what is wrapped comes back, for what it was wrapped for, and a service that is away says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.at_rest.transit import TransitWrapper
from persistence.at_rest.wrapping import WrappedSecret
from sessions.model.errors import BadInput, Unavailable
from tests.support.stores.transit_server import TOKEN, TransitServer


@pytest.fixture
def service() -> Iterator[tuple[TransitServer, str]]:
    server = TransitServer()
    with server.running() as url:
        yield server, url


async def test_a_secret_comes_back_for_what_it_was_wrapped_for(service: tuple[TransitServer, str]) -> None:
    wrapper = TransitWrapper(service[1], token=TOKEN)
    wrapped = await wrapper.wrap(b"secret", b"acme")
    assert wrapped.wrapper == "vault:v1" == await wrapper.current() and b"secret" not in wrapped.data
    assert await wrapper.unwrap(wrapped, b"acme") == b"secret"
    assert await wrapper.unwrap(wrapped, b"globex") is None
    assert await wrapper.unwrap(WrappedSecret("vault:v1", b"vault:v1:eHh4"), b"acme") is None
    assert await wrapper.unwrap(WrappedSecret("x", b"\xff"), b"acme") is None


async def test_a_rotated_key_rewraps_and_older_versions_open(service: tuple[TransitServer, str]) -> None:
    server, url = service
    wrapper = TransitWrapper(url, token=TOKEN)
    old = await wrapper.wrap(b"secret", b"acme")
    server.rotate()
    assert await wrapper.current() == "vault:v2"
    new = await wrapper.rewrap(old, b"acme")
    assert new is not None and new.wrapper == "vault:v2"
    assert await wrapper.unwrap(new, b"acme") == await wrapper.unwrap(old, b"acme") == b"secret"
    assert await wrapper.rewrap(WrappedSecret("vault:v1", b"vault:v1:eHh4"), b"acme") is None


async def test_the_token_is_read_again_for_each_call(service: tuple[TransitServer, str], tmp_path: Path) -> None:
    server, url = service
    file = tmp_path / "token"
    file.write_text("old\n")
    wrapper = TransitWrapper(url, token_file=str(file))
    with pytest.raises(Unavailable, match="403"):
        await wrapper.wrap(b"secret", b"acme")
    file.write_text(f"{server.token}\n")
    assert (await wrapper.wrap(b"secret", b"acme")).wrapper == "vault:v1"
    file.unlink()
    with pytest.raises(Unavailable):
        await wrapper.wrap(b"secret", b"acme")


@pytest.mark.parametrize("status", [301, 400, 404, 500, 503])
async def test_any_other_answer_is_unavailable(service: tuple[TransitServer, str], status: int) -> None:
    server, url = service
    server.answers.append(status)
    with pytest.raises(Unavailable):
        await TransitWrapper(url, token=TOKEN).wrap(b"secret", b"acme")


@pytest.mark.parametrize(
    "url",
    ["", "vault.example/transit/sessile", "https://vault.example", "https://vault.example/sessile", "ftp://x/a/b"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        TransitWrapper(url, token=TOKEN)


def test_keys_go_over_https_only_and_need_a_token(tmp_path: Path) -> None:
    for settings in ({"url": "http://vault.example/transit/sessile", "token": TOKEN},):
        with pytest.raises(BadInput):
            TransitWrapper(**settings)
    with pytest.raises(BadInput):
        TransitWrapper("https://vault.example/transit/sessile")
    with pytest.raises(BadInput):
        TransitWrapper("https://vault.example/transit/sessile", token=TOKEN, authority=str(tmp_path / "missing"))
    TransitWrapper("https://vault.example/transit/sessile", token=TOKEN)
