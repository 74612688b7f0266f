"""The window's books always balance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transport.protocol.flow_control import Unacked, Window


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "ack", "forget"]), st.integers(0, 2), st.integers(1, 50), st.integers(0, 99)
        ),
        max_size=60,
    )
)
def test_what_is_out_is_what_was_sent_and_not_acknowledged(steps: list[tuple[str, int, int, int]]) -> None:
    window = Window(5, 200)
    readers = [Unacked() for _ in range(3)]
    out: list[list[tuple[int, int]]] = [[], [], []]
    tops = [0, 0, 0]
    for now, (kind, which, amount, offset) in enumerate(steps):
        if kind == "send":
            tops[which] += 1 + amount % 3
            window.sent(readers[which], tops[which], amount, now)
            out[which].append((tops[which], amount))
        elif kind == "ack":
            freed = any(at <= offset for at, _ in out[which])
            assert window.acked(readers[which], offset, now) == freed
            out[which] = [(at, size) for at, size in out[which] if at > offset]
        else:
            window.forget(readers[which], now)
            out[which] = []
        assert window.events == sum(map(len, out))
        assert window.bytes == sum(size for one in out for _, size in one)
        assert (window.full_since is not None) == window.full
        assert [reader.sent is None for reader in readers] == [not one for one in out]
