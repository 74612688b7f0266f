"""Says how much a test tries: little in `make test`, which has to be short, and more in `make test-all`.

Only the stages of `make test-all` that run a test again where it is not marked `slow` need it; elsewhere the larger
number is a parameter that is marked `slow`.
"""

from __future__ import annotations

import os
from typing import Final

EXPLORES: Final = bool(os.environ.get("SESSILE_TEST_EXPLORE"))


def effort(few: int, many: int) -> int:
    """Returns how many examples or rounds are tried here: `many` in `make test-all`, else `few`."""
    return many if EXPLORES else few
