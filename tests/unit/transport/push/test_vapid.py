"""The key that signs pushes: read from a file, for one push service at a time."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sessions.model.errors import BadInput
from sessions.model.types import UnixMs
from tests.support.doors.push_service import vapid_pem
from transport.push.door import decode_key
from transport.push.vapid import TOKEN_S, read_vapid_key

NOW = UnixMs(1_800_000_000_000)
CONTACT = "mailto:us@example.org"


def test_a_token_is_for_one_origin_and_made_anew_before_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "push.pem"
    file.touch(0o600)
    file.write_bytes(vapid_pem())
    key = read_vapid_key(str(file), CONTACT)
    assert len(decode_key(key.public)) == 65
    first = key.authorization("https://push.example/a", NOW)
    assert first == key.authorization("https://push.example/b", UnixMs(NOW + 1000))
    assert first.endswith(f", k={key.public}")
    claims = jwt.decode(first.removeprefix("vapid t=").split(",")[0], options={"verify_signature": False})
    assert claims == {"aud": "https://push.example", "exp": NOW // 1000 + TOKEN_S, "sub": CONTACT}
    assert key.authorization("https://push.example/a", UnixMs(NOW + TOKEN_S * 1000)) != first
    assert key.authorization("https://other.example/a", NOW) != first


def test_what_is_no_key_is_refused_with_what_to_do(tmp_path: Path) -> None:
    other = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for text, words in ((b"no key", "no private key"), (other, "P-256"), (None, "No such file")):
        file = tmp_path / "push.pem"
        file.unlink(missing_ok=True)
        if text is not None:
            file.touch(0o600)
            file.write_bytes(text)
        with pytest.raises(BadInput, match=words) as refused:
            read_vapid_key(str(file), CONTACT)
        assert "openssl" in refused.value.public_message
    for contact in ("us", "mailto:", "mailto:us", "https://", "http://a.example", "mailto:a b@c", "mailto:a@b\n"):
        with pytest.raises(BadInput, match="push_contact"):
            read_vapid_key(str(tmp_path / "push.pem"), contact)
