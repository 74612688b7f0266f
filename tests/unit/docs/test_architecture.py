"""The architecture draws every package, its paths lead somewhere, and each decision is one page of the index."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("sessions", "actors", "inference", "persistence", "transport")
FOLDERS = (*PACKAGES, "clients", "deploy", "tests", "testbed", "bench", "docs")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = ROOT / "docs" / "decisions"
HEADINGS = ["Decided", "Otherwise possible", "Why", "Consequences"]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def packages(root: Path) -> set[str]:
    """Every folder below the five that is a package."""
    inits = (init for package in PACKAGES for init in (root / package).rglob("__init__.py"))
    return {init.parent.relative_to(root).as_posix() for init in inits}


def described(page: str) -> dict[str, str]:
    """Package -> what it is for, from the page's table of every package."""
    table = page.split("## Every package", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| `([\w/]+)` \| (.+) \|$", table, re.MULTILINE))


def missing(existing: Iterable[str], page: str) -> set[str]:
    return set(existing) - set(described(page))


def dead_paths(page: str, root: Path) -> list[str]:
    """Paths of ours in backticks that do not exist; `*` is a wildcard, a bare `test_x.py` lies anywhere in `tests`."""
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]+)`", page)
    named += [f"tests/**/{test}" for test in re.findall(r"`(test_\w+\.py)`", page)]
    return [path for path in named if not any(root.glob(path.rstrip("/")))]


def test_every_package_is_in_the_architecture() -> None:
    assert missing(packages(ROOT), ARCHITECTURE) == set()
    assert set(described(ARCHITECTURE)) - packages(ROOT) == set(), "they are no packages any more"


def test_a_package_that_is_planted_is_found_missing(tmp_path: Path) -> None:
    for folder in ("sessions", "sessions/model", "actors/planted"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    assert packages(tmp_path) == {"sessions", "sessions/model", "actors/planted"}
    assert missing(packages(tmp_path), ARCHITECTURE) == {"actors/planted"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_paths_and_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert dead_paths(text, ROOT) == []
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def linked(page: Path) -> set[Path]:
    """The pages of ours that a page links to."""
    links = (page.parent / link for link in LINK.findall(page.read_text(encoding="utf-8")) if link.endswith(".md"))
    return {link.resolve() for link in links if link.exists()}


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        new = {link for page in new for link in linked(page)} - reached
    assert [page.relative_to(ROOT).as_posix() for page in PAGES if page not in reached] == []


def test_a_path_that_leads_nowhere_is_found() -> None:
    page = "`sessions/ports.py`, `sessions/nowhere.py`, `bench/*.py`, `test_architecture.py`, `test_nothing.py`"
    assert dead_paths(page, ROOT) == ["sessions/nowhere.py", "tests/**/test_nothing.py"]


def test_each_decision_is_a_page_of_the_index() -> None:
    pages = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    assert re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (DECISIONS / "README.md").read_text(encoding="utf-8")) == pages
    for name in pages:
        text = (DECISIONS / name).read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS, name
        assert len(text.splitlines()) <= 60, f"{name} is more than a page"


def test_pictures_of_the_docs_are_small() -> None:
    pictures = list((ROOT / "docs").rglob("*.png"))
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size >= 150_000] == []
