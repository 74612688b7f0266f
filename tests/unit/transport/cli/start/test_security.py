"""Files of certificates that settings name are read, or named where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from transport.cli.settings import BadSetting, Settings
from transport.cli.start.security import peer_security, pem, tls_of


def test_a_file_is_read_and_none_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text("PEM")
    assert pem(Settings(peer_authority=str(tmp_path / "a.pem")), "peer_authority") == b"PEM"
    assert peer_security(Settings(peer_token="t" * 16)).token == "t" * 16 and tls_of(Settings()) is None


def test_a_file_that_is_not_there_is_named_with_its_setting() -> None:
    with pytest.raises(BadSetting, match=r"peer_key = 'no-such\.pem': .*No such file"):
        peer_security(Settings(peer_key="no-such.pem"))
