"""Images are fetched from the hosts that the operator names, over https, and from nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from inference.image_fetcher import ImageFetcher
from inference.tools.outbound import ToolAnswer, ToolHttpClient, ToolUnanswered, ToolUnreached
from sessions.model.errors import BadInput, SessileError
from sessions.model.knowledge.images import IMAGE_BYTES_MAX
from sessions.public_addresses import AddressRules

HOSTS = ("images.example.com", "*.cdn.example.com", "10.1.0.0/16")
URL = "https://images.example.com/a.png"


class Client(ToolHttpClient):
    """Answers with `answer`, and notes what it was to send."""

    def __init__(self, answer: ToolAnswer | Exception) -> None:
        super().__init__()
        self.answer = answer
        self.sent: list[tuple[str, AddressRules]] = []

    async def send(self, method: str, url: str, rules: AddressRules, **options: Any) -> ToolAnswer:
        self.sent.append((url, rules))
        assert method == "GET" and options["body"] is None and options["bytes_max"] == IMAGE_BYTES_MAX
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("url", [URL, "https://IMAGES.example.com.:8443/a", "https://a.b.cdn.example.com/?x=1"])
async def test_named_hosts_are_fetched_from_by_rules_that_know_the_private_networks(url: str) -> None:
    client = Client(ToolAnswer(200, b"image", cut=False))
    async with ImageFetcher(HOSTS, client=client) as fetcher:
        assert await fetcher.fetch(url) == b"image"
    ((sent, rules),) = client.sent
    assert sent == url and rules.permits_all(["10.1.2.3"]) and not rules.permits_all(["10.2.0.1"])
    assert not rules.permits_all(["127.0.0.1"])


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example.com/a.png",
        "https://example.com/a.png",
        "https://cdn.example.com/a.png",
        "https://images.example.com.evil.org/",
        "https://evilimages.example.com/",
        "https://images.example.com@evil.org/",
        "https://10.1.0.1/a.png",
        "https://127.0.0.1/",
        "https://[::1]/",
        "ftp://images.example.com/",
        "file:///etc/passwd",
        "//images.example.com/a",
        "https://images.example.com\\@evil.org/",
        "https://images.example.com/ä",
        "",
    ],
)
async def test_every_other_address_is_refused_before_anything_is_sent(url: str) -> None:
    client = Client(ToolAnswer(200, b"image", cut=False))
    async with ImageFetcher(HOSTS, client=client) as fetcher:
        with pytest.raises(BadInput) as refused:
            await fetcher.fetch(url)
    assert refused.value.code == "image_not_permitted" and not client.sent


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ToolAnswer(404, b"none", cut=False), "image_unreadable"),
        (ToolAnswer(302, b"", cut=False), "image_unreadable"),
        (ToolAnswer(200, b"x", cut=True), "image_unreadable"),
        (ToolUnreached("its address is not permitted"), "image_unreachable"),
        (ToolUnanswered("it did not answer in time"), "image_unreachable"),
    ],
)
async def test_what_gives_no_image_says_why(answer: ToolAnswer | Exception, code: str) -> None:
    async with ImageFetcher(HOSTS, client=Client(answer)) as fetcher:
        with pytest.raises(SessileError) as refused:
            await fetcher.fetch(URL)
    assert refused.value.code == code


@pytest.mark.parametrize("host", ["https://images.example.com", "10.1.0.0/40", "a b", "*.", "images.example.com/x"])
def test_what_is_no_host_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(BadInput) as refused:
        ImageFetcher((host,))
    assert refused.value.param == "image_hosts"
