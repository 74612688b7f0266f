"""Pages of sessions from several replicas become one; members and sessions are named as they are shown."""

from __future__ import annotations

import pytest

from sessions.model.errors import NotFound
from sessions.model.types import ReplicaId
from sessions.ports import Member, View
from transport.ops.operator_requests import find_member


def test_a_member_that_is_not_there_is_refused_with_those_that_are() -> None:
    member = Member(replica=ReplicaId("r1"), incarnation="i", address="127.0.0.1:5", model="m", fingerprint="f")
    assert find_member(View(version=1, members=(member,)), "r1") is member
    with pytest.raises(NotFound, match="There is no replica 'r2'; there are: r1"):
        find_member(View(version=1, members=(member,)), "r2")
    with pytest.raises(NotFound, match="there are: none"):
        find_member(View(version=1, members=()), "r2")
