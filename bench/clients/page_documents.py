"""Markdown and HTML made up to hurt it, through the page's renderer in a real Chromium: no long step, no script run.

    python -m bench.clients.page_documents --documents 10000 --seed 1

A step is what the page does before it gives the browser its thread back; none may take longer than 50 ms. The documents
and the run are `tests/browser/documents.mjs`; it needs Node and Chromium, as the browser tests do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import msgspec

from bench.support import ROOT, is_faultless, report, run_bench


def main(given: argparse.Namespace) -> bool:
    run = subprocess.run(
        [
            *(str(ROOT / "deploy" / "with_node.sh"), "node", str(ROOT / "tests" / "browser" / "documents.mjs")),
            *("--documents", str(given.documents), "--seed", str(given.seed)),
        ],
        cwd=ROOT,
        env={**os.environ, "SESSILE_TEST_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        check=True,
    )
    result = msgspec.json.decode(run.stdout)
    good = is_faultless([*result["faults"], *result["slow"]]) and result["scripts_run"] == 0
    report("page_documents", {**result, "faults": len(result["faults"]), "slow": len(result["slow"])})
    return good


if __name__ == "__main__":
    run_bench(main, __doc__, documents=10_000, seed=1)
