"""Reads the source tree for the house rules of tests/unit/house: names and imports.

Every check takes sources or trees as arguments, so that a test can plant a violation. `python -m tests.support.house`
says what each rule finds in the tree.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("sessions", "actors", "inference", "persistence", "transport")

RULED_OUT: Final = frozenset(
    {"told", "tell", "asked", "ask", "wanted", "said", "found", "meant", "gone", "others", "somebody"}
)
STANDARD: Final = re.compile(r"NotFound|not_found|NOT_FOUND|^Gone$")
WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A file of ours, read once."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path  # from the root of the repository, with slashes
        self.lines = len(source.splitlines())
        self.tree = ast.parse(source)
        self.statements = list(_statements(self.tree.body, ""))

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def functions(self) -> list[tuple[str, Function]]:
        return [(name, node) for name, node in self.statements if isinstance(node, Function)]

    @property
    def classes(self) -> list[tuple[str, ast.ClassDef]]:
        return [(name, node) for name, node in self.statements if isinstance(node, ast.ClassDef)]


def _statements(body: Iterable[Any], prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    """Every statement, with the qualified name of the class or function that it defines or stands in."""
    for node in body:
        inside = prefix
        if isinstance(node, ast.ClassDef | Function):
            inside = f"{prefix}{node.name}."
        yield inside.rstrip("."), node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            for each in getattr(node, block, ()):
                if isinstance(each, ast.ExceptHandler | ast.match_case):
                    yield from _statements(each.body, inside)
                else:
                    yield from _statements([each], inside)


def files(*folders: str) -> list[Path]:
    """Our Python files below the folders, and `app.py` where it is named; generated ones left out."""
    paths = [
        path for each in folders for path in ([ROOT / each] if each.endswith(".py") else (ROOT / each).rglob("*.py"))
    ]
    return sorted(path for path in paths if "_pb2" not in path.name and "node_modules" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules(*folders: str) -> list[Module]:
    """The files below the folders, read once. They stay, and the collector never looks at their millions of nodes."""
    gc.disable()
    try:
        return [_read(path) for path in files(*folders)]
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def _read(path: Path) -> Module:
    return Module(name_of(path), path.read_text())


# -- names ------------------------------------------------------------------------------------------------------------


def class_names_defined_twice(tree: Iterable[Module]) -> list[str]:
    counts: Counter[str] = Counter()
    for each in tree:
        counts.update(node.name for _, node in each.classes)
    return sorted(name for name, count in counts.items() if count > 1 and not name.startswith("_"))


def words(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(STANDARD.sub("", name))]


def ruled_out_names(tree: Iterable[Module]) -> list[str]:
    """Types and public functions, methods among them, with a word that the house rules out."""
    problems = []
    for each in tree:
        names = [(name, node.name) for name, node in (*each.classes, *each.functions)]
        for node in each.tree.body:  # types without a `class`: aliases, NewType
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
                names += [(target.id, target.id)] if re.match(r"[A-Z]\w*[a-z]", target.id) else []
        problems += [
            f"{each.path}:{full}" for full, name in names if not name.startswith("_") and RULED_OUT & set(words(name))
        ]
    return sorted(problems)


# -- imports ----------------------------------------------------------------------------------------------------------


def imports(each: Module) -> Iterator[tuple[int, str, str | None]]:
    """(line, module, name) of every absolute import, the ones inside functions and under TYPE_CHECKING too."""
    for _, node in each.statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.lineno, node.module, alias.name


def import_graph(tree: Iterable[Module]) -> dict[str, set[str]]:
    known = {each.name: each for each in tree}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for name, each in known.items():
        for _, target, part in imports(each):
            whole = f"{target}.{part}"
            generated = part is not None and "_pb2" in part
            graph[name].add(whole if whole in known or generated else target)
        graph[name] &= known.keys() - {name}
    return graph


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found)


def foreign_imports(tree: Iterable[Module], forbidden: re.Pattern[str]) -> list[str]:
    """Imports of modules whose dotted name (with what is taken from it) matches."""
    return sorted(
        f"{each.path}:{line}: {target}"
        for each in tree
        for line, target, part in imports(each)
        if forbidden.match(target) or (part is not None and forbidden.match(f"{target}.{part}"))
    )


# -- the tree as it is ------------------------------------------------------------------------------------------------


@functools.cache
def everything() -> Mapping[str, list[str]]:
    """What each rule finds in the tree as it is."""
    server = modules(*PACKAGES, "app.py", "deploy")
    product = [*server, *modules("bench")]
    tests = modules("tests", "testbed")
    return {
        "class names defined twice": class_names_defined_twice(product),
        "ruled-out words": ruled_out_names(product),
        "import circles": [name for circle in circles(import_graph([*product, *tests])) for name in circle],
    }


if __name__ == "__main__":
    for rule, names in everything().items():
        print(f"{rule}: {len(names)}", *names, sep="\n  ")
