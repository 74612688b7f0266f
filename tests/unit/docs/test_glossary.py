"""The glossary holds the code to its words: each word once, each reference resolves."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("sessions", "actors", "inference", "persistence", "transport")
REFERENCE = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
WORDS = {  # without which nobody can read these pages
    *("session", "principal", "item", "turn", "response", "generation", "log", "offset", "epoch", "ledger", "fence"),
    *("replica", "gateway", "directory", "lease", "journal", "activation", "passivation", "hand-off", "failover"),
    *("prefill", "decode", "KV block", "prefix hit", "spill", "restore", "recompute", "TTFT", "TPOT", "goodput"),
}


@functools.cache
def sources() -> dict[str, str]:
    """Module -> source of every module of the packages; generated ones left out."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]
    return {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path.read_text() for path in paths}


@functools.cache
def public_classes(source: str) -> tuple[str, ...]:
    """The classes at the top of a module whose names are public."""
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return tuple(node.name for node in classes if not node.name.startswith("_"))


def entries(page: str) -> list[tuple[str, str, str]]:
    """(word, meaning, reference) of every row of the page's tables."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    return [(row[0], row[1], row[2].strip("`")) for row in rows if row[0] != "word"]


def unresolved(references: Iterable[str], modules: Mapping[str, str]) -> list[str]:
    """References that are neither a module or package of ours nor a class at the top of one."""
    known = {module.removesuffix(".__init__") for module in modules}
    known |= {f"{module}.{name}" for module, source in modules.items() for name in public_classes(source)}
    return [reference for reference in references if reference not in known]


GLOSSARY = entries((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))


def test_each_word_stands_once_with_a_meaning() -> None:
    words = [word for word, _, _ in GLOSSARY]
    assert len(words) > 60
    assert [word for word in words if words.count(word) > 1] == []
    assert [word for word, meaning, _ in GLOSSARY if not meaning] == []
    assert WORDS - set(words) == set()


def test_each_reference_leads_to_a_module_or_a_class() -> None:
    assert unresolved((reference for _, _, reference in GLOSSARY), sources()) == []


def test_references_in_the_pages_prose_exist() -> None:
    modules = sources()
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]:
        named = (re.sub(r"\(.*", "", code) for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))
        assert unresolved(filter(REFERENCE.fullmatch, named), modules) == [], page.name


def test_the_checks_find_what_is_planted() -> None:
    modules = sources()
    assert unresolved(
        ["sessions.actor.actor.Actor", "sessions.actor", "sessions.actor.actor.Nobody", "sessions.nowhere"], modules
    ) == ["sessions.actor.actor.Nobody", "sessions.nowhere"]
    twice = "| word | meaning | where |\n|---|---|---|\n| a | b | `sessions.model` |\n"
    assert entries(twice) == [("a", "b", "sessions.model")]
