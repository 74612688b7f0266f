"""Says which random mutants of some packages their tests kill, so that nobody deletes a test that was the only one.

    python bench/mutants.py persistence/sql --tests 'tests/contract/store -k sqlite' --beside tests/unit/persistence

`--beside` names the tests that may be deleted. They run only against mutants that `--tests` let live, and the report
lists which of them fail: those have to stay. The mutants are cosmic-ray's and, in statements of SQL, our own.
cosmic-ray is no part of the environment: `uv pip install --target FOLDER cosmic-ray`, then `PYTHONPATH=FOLDER`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
OPERATORS = re.compile(
    r"core/(ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)|AddNot"
    r"|Replace(TrueWithFalse|FalseWithTrue|AndWithOr|OrWithAnd|BreakWithContinue|ContinueWithBreak)|NumberReplacer"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Mod_Add)|ReplaceUnaryOperator_Delete_Not|ZeroIterationForLoop)"
)
SQL = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " AND ": " OR ", " DESC": ""}
SQL_LINE = re.compile(r"\b(SELECT|WHERE|UPDATE|DELETE|ORDER BY|AND|SET|ON CONFLICT)\b.*[\"']|^\s*[A-Z]+ .*\$\d")


class Mutant(NamedTuple):
    path: str
    line: int
    what: str
    source: str


def mutants_of(path: Path) -> list[Mutant]:
    """Returns every mutant of a module."""
    tree, mutating, plugins = (import_module(f"cosmic_ray.{name}") for name in ("ast", "mutating", "plugins"))
    source, name = path.read_text(), str(path.relative_to(ROOT))
    found = []
    for operator_name in filter(OPERATORS.fullmatch, plugins.operator_names()):
        operator = plugins.get_operator(operator_name)()
        lines = [at[0][0] for node in tree.ast_nodes(tree.get_ast(source)) for at in operator.mutation_positions(node)]
        for occurrence, line in enumerate(lines):
            found.append(Mutant(name, line, operator_name, mutating.mutate_code(source, operator, occurrence)))
    lines = source.splitlines(keepends=True)
    for number, text in enumerate(lines):
        for old, new in SQL.items() if SQL_LINE.search(text) else ():
            if old in text:
                changed = [*lines[:number], text.replace(old, new, 1), *lines[number + 1 :]]
                found.append(Mutant(name, number + 1, f"{old.strip()} to {new.strip()}", "".join(changed)))
    return [each for each in found if each.source != source]


def failing(folder: Path, tests: str, *options: str) -> list[str]:
    """Returns the tests that fail in a copy of the project; a run that hangs or breaks fails as a whole."""
    command = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "--timeout=60", "-p", "no:cacheprovider", *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant of before may be in what was compiled
    try:
        done = subprocess.run(
            [*command, *shlex.split(tests)], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
    except subprocess.TimeoutExpired:
        return ["(hangs)"]
    names = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return names or (["(breaks)"] if done.returncode not in (0, 5) else [])


def copy_of(folder: Path) -> Path:
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "node_modules", "__pycache__"))
    for name in (".venv", ".cache"):
        (folder / name).symlink_to((ROOT / name).resolve())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--tests", required=True, help="pytest's arguments: tests that stay")
    parser.add_argument("--beside", default="", help="pytest's arguments: tests that may be deleted")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    paths = sorted(path for package in given.packages for path in (ROOT / package).rglob("*.py"))
    paths += [ROOT / package for package in given.packages if package.endswith(".py")]
    everything = [mutant for path in paths for mutant in mutants_of(path)]
    chosen = random.Random(given.seed).sample(everything, min(given.count, len(everything)))
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        copies: Queue[Path] = Queue()
        for number in "12":
            copies.put(copy_of(Path(scratch) / number))

        def verdict(mutant: Mutant) -> str:
            folder = copies.get()
            try:
                (folder / mutant.path).write_text(mutant.source)
                if killers := failing(folder, given.tests, "-x"):
                    result = "killed"
                else:
                    killers = failing(folder, given.beside) if given.beside else []
                    result = "killed beside" if killers else "lives"
            finally:
                shutil.copy2(ROOT / mutant.path, folder / mutant.path)
                copies.put(folder)
            print(f"{result:13} {mutant.path}:{mutant.line} {mutant.what} {' '.join(killers)}", flush=True)
            return result

        results = list(pool.map(verdict, chosen))
    print({each: results.count(each) for each in sorted(set(results))}, "of", len(everything), file=sys.stderr)


if __name__ == "__main__":
    main()
