"""Pauses, watched files, limits, load, metrics, names and addresses."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sessions.backoff import Backoff
from sessions.file_watcher import FileWatcher
from sessions.load_history import STEP_S, LoadHistory, LoadSample, sum_by_time, thinned
from sessions.metrics import OTHER, VALUES_MAX, Counter, Histogram, Histograms, Metrics, quantile_of
from sessions.model.generation import EngineStats
from sessions.model.types import UnixMs
from sessions.name_lookup import NameLookup
from sessions.public_addresses import AddressRules, destination
from sessions.server_tools import canonical


def test_pauses_double_up_to_the_bound_and_begin_anew_after_a_reset() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [round(backoff.next_s(), 3) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_jitter_stays_between_half_and_one_and_a_half_and_differs_between_callers() -> None:
    pauses = [Backoff(1.0, 8.0, random.Random(seed)).next_s() for seed in range(200)]
    assert all(0.5 <= pause < 1.5 for pause in pauses) and len(set(pauses)) > 100


class Book:
    def __init__(self, path: Path) -> None:
        self.says = ""
        self.threads: set[int] = set()
        self.gate: threading.Event | None = None
        self.begun = threading.Event()
        self.third = asyncio.Event()
        self.file = FileWatcher(path, self._read, self._take, what="book", refused=(ValueError,), look_s=0.001)

    def _read(self, path: Path) -> str:
        self.threads.add(threading.get_ident())
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(20)
        text = path.read_text()
        if "bad" in text:
            raise ValueError(f"{text!r} is bad")
        return text

    async def _take(self, text: str) -> None:
        if "unusable" in text:
            raise ValueError("it cannot be used")
        self.says = text
        if text == "three!":
            self.third.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "book"
    path.write_text("one")
    return path


@pytest.mark.parametrize("text", ["bad", "unusable", None])
async def test_a_bad_one_is_refused_once_and_changes_nothing(path: Path, text: str | None) -> None:
    book = Book(path)
    book.says = book.file.first()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert not await book.file.look() and book.says == "one"
    book.threads.clear()
    assert not await book.file.look() and not book.threads  # it was said
    path.write_text("three")
    assert await book.file.look() and book.says == "three"


async def test_the_loop_goes_on_while_a_file_is_read_and_a_change_meanwhile_is_not_missed(path: Path) -> None:
    book = Book(path)
    book.says = book.file.first()
    book.gate, book.begun = threading.Event(), threading.Event()
    path.write_text("two")
    running = asyncio.create_task(book.file.run())
    try:
        await asyncio.to_thread(book.begun.wait, 20)
        assert book.says == "one"  # this ran although the reader stands still
        book.begun.clear()
        path.write_text("three!")
        book.gate.set()
        async with asyncio.timeout(60):
            await book.third.wait()
        assert book.says == "three!"
    finally:
        running.cancel()
        await asyncio.wait([running])


BEGUN_S = 1_000_000_000  # a whole step


class Engine:
    def __init__(self) -> None:
        self.decoded = 0.0
        self.waiting = 0
        self.gauges: dict[str, float] = {}

    def stats(self) -> EngineStats:
        counters = {"decoded_tokens": self.decoded}
        return EngineStats(slots=4, running=1, waiting=self.waiting, counters=counters, gauges=self.gauges)


class Rig:
    """A history, what it reads, and the wall clock it goes by."""

    def __init__(self) -> None:
        self.now_s = float(BEGUN_S)
        self.metrics = Metrics()
        self.engine = Engine()
        engine: Any = self.engine
        self.history = LoadHistory(self.metrics, engine, lambda: 3, lambda: UnixMs(int(self.now_s * 1000)))

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.history.sample()


def sample(at: int, **values: Any) -> LoadSample:
    given = LoadSample(at, 10.0, (), 0, 0, 0, 0, 0, 0, 0, 4, 0, {})
    return msgspec.structs.replace(given, **values)


async def test_a_sample_is_what_was_counted_since_the_last_and_what_stands_now() -> None:
    rig = Rig()
    rig.metrics.ttft_s.observe(0.2)
    rig.metrics.activations.add("takeover")
    rig.metrics.activations.add("woken")
    rig.engine.decoded, rig.engine.waiting = 50, 2
    rig.engine.gauges = {"host_bytes": 7.0, "host_bytes_max": 9.0, "read_s": 1.0}
    rig.passes(STEP_S)
    rig.engine.waiting = 0
    rig.passes(STEP_S)
    first, second = rig.history.samples()
    assert (first.at, second.at) == (BEGUN_S + STEP_S, BEGUN_S + 2 * STEP_S)
    assert (sum(first.ttft), first.decoded_tokens, first.failovers, first.waiting) == (1, 50, 1, 2)
    assert (first.slots, first.sessions, first.kv_bytes) == (4, 3, {"host": 7.0})
    assert (sum(second.ttft), second.decoded_tokens, second.failovers, second.waiting) == (0, 0, 0, 0)


async def test_what_lies_ahead_of_a_clock_that_was_set_back_is_dropped() -> None:
    rig = Rig()
    for _ in range(3):
        rig.passes(STEP_S)
    rig.passes(-2 * STEP_S)
    rig.passes(STEP_S)
    ends = [each.at for each in rig.history.samples()]
    assert ends == [BEGUN_S + STEP_S, BEGUN_S + 2 * STEP_S]


def test_longer_steps_add_what_happened_and_keep_the_most_that_waited() -> None:
    three = [
        sample(BEGUN_S + 10, decoded_tokens=5, waiting=7, ttft=(1, 0), kv_bytes={"host": 1.0}),
        sample(BEGUN_S + 20, decoded_tokens=6, waiting=1, ttft=(0, 2), kv_bytes={"host": 2.0}),
        sample(BEGUN_S + 70, decoded_tokens=1),
    ]
    first, second = thinned(three, 60)
    assert (first.at % 60, second.at - first.at) == (0, 60)
    assert (first.decoded_tokens, first.waiting, first.ttft, first.span_s) == (11, 7, (1, 2), 20)
    assert first.kv_bytes == {"host": 2.0}
    assert second.decoded_tokens == 1
    assert thinned(three, STEP_S) == three


def test_replicas_are_added_up_where_their_times_are_the_same() -> None:
    one, other = sample(20, waiting=2, running=1, kv_bytes={"host": 1.0}), sample(20, waiting=3, kv_bytes={"disk": 2.0})
    summed = sum_by_time([sample(10, failovers=1), one, other])
    assert list(summed) == [10, 20]
    assert (summed[20].waiting, summed[20].running, summed[20].slots, summed[20].span_s) == (5, 1, 8, 10)
    assert summed[20].kv_bytes == {"host": 1.0, "disk": 2.0}


def test_labels_are_bounded() -> None:
    counter = Counter("c", "", ("why",))
    for number in range(VALUES_MAX + 3):
        counter.add(str(number))
    assert len(counter.values) == VALUES_MAX + 1 and counter.values[OTHER,] == 3
    family = Histograms("h", "", (1.0,), ("why",))
    for number in range(VALUES_MAX + 3):
        family.of(str(number)).observe(0.5)
    assert family.of(OTHER).count == 3


def test_a_wrong_number_of_labels_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        Counter("c", "", ("why",)).add()
    with pytest.raises(AssertionError):
        Histograms("h", "", (1.0,), ()).of("why")


def test_quantiles() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert quantile_of(histogram.bounds, histogram.counts, 0.5) is None
    for value in (0.5, 0.5, 3.0, 9.0):
        histogram.observe(value)
    found = [quantile_of(histogram.bounds, histogram.counts, share) for share in (0.25, 0.75, 1.0)]
    assert found == [0.5, 3.0, 4.0]


def test_the_same_name_is_the_same_family_and_its_labels_stay() -> None:
    metrics = Metrics()
    first = metrics.counter("limits_hit", "about", "kind")
    assert metrics.counter("limits_hit", "about", "kind") is first
    with pytest.raises(AssertionError):
        metrics.counter("limits_hit", "about", "other")
    with pytest.raises(AssertionError):
        metrics.histograms("limits_hit", "about", (1.0,))


async def test_a_name_and_an_address() -> None:
    lookup = NameLookup()
    assert "127.0.0.1" in await lookup.addresses("localhost", 80)
    assert await lookup.addresses("::1", 80) == ["::1"]
    with pytest.raises(OSError, match=r"."):
        await lookup.addresses("no-such-name.invalid", 443)
    with pytest.raises((OSError, UnicodeError)):
        await lookup.addresses("a\0b", 443)


async def test_names_that_are_not_answered_take_no_thread_of_anybody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    going, real = threading.Event(), socket.getaddrinfo

    def slow(host: str, *more: Any, **about: Any) -> Any:
        if host.endswith(".slow.example"):
            going.wait(20)
        return real("127.0.0.1", *more, **about)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    lookup = NameLookup(at_once=40)
    waiting = [asyncio.create_task(lookup.addresses(f"{n}.slow.example", 443)) for n in range(40)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(int, "5") == 5
            assert await NameLookup().addresses("a.example", 443) == ["127.0.0.1"]
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        with pytest.raises(TimeoutError):  # who gave up still has its place
            async with asyncio.timeout(0.05):
                await lookup.addresses("one-more.example", 443)
    finally:
        going.set()
    assert all(each == ["127.0.0.1"] for each in await asyncio.gather(*waiting[1:]))
    assert await lookup.addresses("one-more.example", 443) == ["127.0.0.1"]


INSIDE = (
    *("127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "ff02::1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1"),
    *("::127.0.0.1", "::ffff:0:127.0.0.1", "fec0::1", "2001:0:7f00:1::", "4000::1", "5f00::1", "3fff::1"),
    *("192.0.0.192", "192.88.99.1", "168.63.129.16"),
)


@pytest.mark.parametrize("address", INSIDE)
def test_nothing_inside_however_it_is_written(address: str) -> None:
    rules = AddressRules()
    assert not rules.permits(ip_address(address)) and not rules.permits_all(["93.184.216.34", address])
    host = f"[{address}]" if ":" in address else address
    assert not rules.permits_url(f"https://{host}/x")


def test_what_is_public_or_named_is_permitted() -> None:
    rules = AddressRules(["10.1.0.0/16", "fd00::/8"])
    assert rules.permits_all(["93.184.216.34", "2606:2800:220:1::1", "10.1.2.3", "fd00::1", "::ffff:10.1.2.3"])
    assert (
        rules.permits_all(["64:ff9b::5db8:d822"]) and not rules.permits_all([]) and not rules.permits_all(["10.2.0.1"])
    )
    for good in ("https://a.example/x", "https://93.184.216.34:8443/", "http://10.1.2.3/x", "https://10.1.2.3/"):
        assert rules.permits_url(good), good
    for bad in (
        "http://a.example/",
        "http://93.184.216.34/",
        "ftp://a.example/",
        "https://u@a.example/",
        "https:///x",
        "x",
    ):
        assert not rules.permits_url(bad), bad
    with pytest.raises(ValueError, match="99"):
        AddressRules(["10.1.0.0/99"])
    with pytest.raises(ValueError, match=r"is 10\.0\.0\.0/8 meant"):
        AddressRules(["10.1.0.0/8"])


UNSENDABLE = (
    "https://a.example:99999/",
    "https://a.example:0/",
    "https://a.example:x/",
    "https://a.example:\u0663/",
    "https://a.example/\x01",
    "https://a.example/ x",
    "https://a.example/\n",
    "https://a.example/\u00e9",
    "https://b\u00fccher.example/",
    "https://a\0b.example/",
    "https://a..b/",
    "https://.example/",
    "https://-a.example/",
    f"https://{'a' * 64}.example/",
    f"https://{'a.' * 127}example/",
    "https://%31.example/",
    "https://a.example\\b/",
    "https://[v1.x]/",
    "https://[::1",
    "https://[fe80::1%25eth0]/",
    "https://@a.example/",
    "https://u:p@a.example/",
    "https://:443/",
    "//a.example/",
    "a.example",
    "",
)


@pytest.mark.parametrize("url", UNSENDABLE)
def test_what_no_request_could_be_sent_to_is_refused_before_one_is(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        destination(url)
    assert not AddressRules().permits_url(url)


def test_arguments_have_one_form() -> None:
    assert canonical('{"b": 1, "a": "\\u00e9"}') == canonical('{"a":"é","b":1}') == '{"a":"é","b":1}'
    with pytest.raises(ValueError, match="delimiter"):
        canonical('{"a"')
