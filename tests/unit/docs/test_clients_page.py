"""docs/clients.md, which the stage `real-clients` writes, has a row and a section for each client that it drives."""

from __future__ import annotations

import re

from tests.clients.drivers import CLIENTS
from tests.clients.run import PAGE, version


def test_the_page_has_every_client_at_its_version() -> None:
    text = PAGE.read_text()
    rows = {match[1]: match[2] for match in re.finditer(r"^\| ([^|]+) \| (\d\S*) \|", text, re.MULTILINE)}
    assert rows == {name: version(client) for name, client in CLIENTS.items()}
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert {name for heading in headings for name in heading.split("; ")} == CLIENTS.keys()
