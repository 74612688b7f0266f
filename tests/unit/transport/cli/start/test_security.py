"""Files of certificates that settings name are read, or named where they cannot be."""

from __future__ import annotations

import pytest

from transport.cli.settings import BadSetting, Settings
from transport.cli.start.security import peer_security


def test_a_file_that_is_not_there_is_named_with_its_setting() -> None:
    with pytest.raises(BadSetting, match=r"peer_key = 'no-such\.pem': .*No such file"):
        peer_security(Settings(peer_key="no-such.pem"))
