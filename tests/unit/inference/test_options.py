"""The bounds that options of engines share."""

from __future__ import annotations

import pytest

from inference.options import KvOptions, check_least
from sessions.model.errors import BadInput


def test_the_first_option_below_its_bound_is_refused_by_name() -> None:
    options = KvOptions(host_bytes_max=0, disk_bytes_max=-1, redis_bytes_max=-2)
    check_least(options, "test", 0, "host_bytes_max")
    with pytest.raises(BadInput) as caught:
        check_least(options, "test", 0, "host_bytes_max", "disk_bytes_max", "redis_bytes_max")
    assert caught.value.param == "disk_bytes_max"
    assert caught.value.public_message == "The test engine's disk_bytes_max must be at least 0."
