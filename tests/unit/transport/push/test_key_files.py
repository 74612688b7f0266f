"""Files of private keys: of the right mode, small, and files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessions.model.errors import BadInput
from tests.support.doors.push_service import vapid_pem
from transport.push.key_files import BYTES_MAX, p256_key, read_key_file


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o620, 0o604, 0o610, 0o666, 0o777])
def test_a_key_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(vapid_pem())
    file.chmod(mode)
    with pytest.raises(BadInput, match="chmod 600") as refused:
        p256_key("push_key", str(file), "?")
    assert refused.value.param == "push_key"
    file.chmod(0o400)
    assert p256_key("push_key", str(file), "?").curve.name == "secp256r1"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe, 0o600)
    large.touch(0o600)
    large.write_bytes(b"x" * (BYTES_MAX + 1))
    for path, words in (
        (pipe, "no file"),
        (tmp_path, "no file|directory"),
        (large, "more than"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(BadInput, match=words) as refused:
            read_key_file("push_apns_key", str(path), "make one")
        assert refused.value.param == "push_apns_key"
