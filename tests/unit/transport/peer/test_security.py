"""Who may open a peer link."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.model.errors import BadInput
from transport.peer.security import PeerCertificates, PeerSecurity

TOKEN = "0123456789abcdef"
WHOLE = PeerCertificates(authority=b"a", certificate=b"c", key=b"k")


@pytest.mark.parametrize("fields", [{"token": "short"}, {"token": "0123456789abcdé-"}, {"token": "0123456789abc\ndef"}])
def test_a_weak_token_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        PeerSecurity(**fields)


def test_certificates_are_whole_and_renewed_at_once() -> None:
    for half in ({"authority": b"a"}, {"authority": b"a", "certificate": b"c"}, {"key": b"k"}):
        with pytest.raises(BadInput):
            PeerCertificates(**half)
    security, new = PeerSecurity(certificates=WHOLE), PeerCertificates(authority=b"A", certificate=b"C", key=b"K")
    before = security.certificates
    security.renew(new)
    assert security.certificates is new and before == WHOLE
    with pytest.raises(AttributeError):
        before.key = b"K"  # type: ignore[misc]


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
    PeerSecurity(certificates=WHOLE).check_address("0.0.0.0")
