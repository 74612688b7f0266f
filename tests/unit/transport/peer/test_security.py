"""Who may open a peer link."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import BadInput
from transport.peer.security import PeerSecurity

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    "fields",
    [{"token": "short"}, {"token": "0123456789abcdé-"}, {"token": "0123456789abc\ndef"}, {"authority": b"x"}],
)
def test_a_weak_token_or_half_a_certificate_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        PeerSecurity(**fields)


def test_only_who_shows_the_token_is_admitted() -> None:
    security = PeerSecurity(token=TOKEN)
    assert security.admits(security.metadata())
    assert security.admits([("authorization", f"Bearer {TOKEN}".encode())])
    for metadata in (None, [], [("authorization", TOKEN)], [("authorization", f"Bearer {TOKEN}x")], [("x", TOKEN)]):
        assert not security.admits(metadata)
    assert PeerSecurity().admits(None) and PeerSecurity().metadata() == ()


def test_without_either_it_listens_on_loopback_only() -> None:
    PeerSecurity().check_address("127.0.0.1")
    for plain in (PeerSecurity(), PeerSecurity(token=TOKEN), PeerSecurity(insecure=True)):
        with pytest.raises(BadInput, match=r"--peer-authority.*--peer-insecure"):
            plain.check_address("0.0.0.0")
    PeerSecurity(token=TOKEN, insecure=True).check_address("0.0.0.0")
    PeerSecurity(authority=b"a", certificate=b"c", key=b"k").check_address("0.0.0.0")
