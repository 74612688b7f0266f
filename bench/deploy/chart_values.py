"""Renders the chart with generated values files: each gives valid manifests, or is refused with a sentence.

    python -m bench.deploy.chart_values --count 500

Valid is what Kubernetes' strict schemas take, and those of the CRDs. Bar: no values file that is neither.
"""

from __future__ import annotations

import random
import time

from bench.support import command_line, is_faultless, report
from tests.support.kubernetes.generated_values import generated, is_sentence
from tests.support.kubernetes.manifests import RefusedValues, problems, render

if __name__ == "__main__":
    arguments = command_line(__doc__, count=500, seed=19)
    rng, faults = random.Random(arguments.seed), list[str]()
    rendered = refused = objects = 0
    begun = time.perf_counter()
    for _ in range(arguments.count):
        values = generated(rng)
        try:
            manifests = render(values)
        except RefusedValues as error:
            refused += 1
            if not is_sentence(str(error)):
                faults.append(f"{values}: {error}")
            continue
        rendered += 1
        objects += len(manifests)
        faults += [f"{values}: {problem}" for each in manifests for problem in problems(each)]
    figures = {"values": arguments.count, "rendered": rendered, "refused": refused, "objects": objects}
    report("the chart's values", {**figures, "faults": len(faults), "seconds": time.perf_counter() - begun})
    raise SystemExit(0 if is_faultless(faults) else 1)
