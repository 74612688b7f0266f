"""Servers that tests share end with the tests: a worker that took long to end was killed, and they went on."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from testbed.at_end import at_end, end_all

for number in (1, 2):
    at_end(lambda number=number: print(number))
end_all()
at_end(lambda: print("at the end of the process"))
"""


def test_each_is_ended_once_and_the_last_one_first() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["2", "1", "at the end of the process"]
