"""The key that signs pushes: read from a file, for one push service at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sessions.model.errors import BadInput
from transport.push.vapid import read_vapid_key

CONTACT = "mailto:us@example.org"


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
