"""Tries chat templates: every `*.jinja` of a folder through the conversations of the families' test.

    python -m bench.engine.chat_templates FOLDER

Prints a row for each, as docs/models.md has them, and behind it what differs from transformers' text. Official
templates are in the source package of llama-cpp-python, under `vendor/llama.cpp/models/templates`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sessions.model.errors import BadInput
from tests.support.engines.chat_templates import SPECIALS
from tests.support.engines.template_reference import tried


def main(folder: Path) -> None:
    """Prints a row for each template of the folder, and how many of them are as they should be."""
    files, right, refused = sorted(folder.glob("*.jinja")), 0, 0
    if not files:
        sys.exit(f"{folder} holds no *.jinja.")
    for file in files:
        try:
            row = tried(file.read_text(), SPECIALS)
        except BadInput as error:
            refused += 1
            print(f"| {file.stem} | refused | {error.public_message}")
            continue
        right += not row.differs
        print(f"| {file.stem} {row.cells}", *row.differs)
    print(f"{len(files)} templates: {refused} refused, {right} as transformers renders them or folded")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
