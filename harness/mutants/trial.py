"""The process that judges mutants: kernels, references and properties are warm in it, and each mutant is a fork of it.

Run as `python -m packproof.harness.mutants.trial` with TRITON_INTERPRET=1. Reads an order from stdin, one line of JSON:
"ops", "mutants" (ids), "explained" (ids of those that nothing is expected to convict) and "jobs". Writes an outcome a
line; that of a survivor has no "by", and none has an "op" whose line no check executes.
"""

import gc
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from packproof.harness.mutants.children import forked
from packproof.harness.mutants.court import Court
from packproof.harness.mutants.mutant import Mutant, all_mutants
from packproof.harness.own import OWN
from packproof.harness.zygote import prepare

Outcome = dict[str, Any]


def judged(ops: list[str], mutants: list[Mutant], explained: set[str], jobs: int) -> Iterator[Outcome]:
    """The outcomes: by the quick checks of all ops; of those that survive unexplained, by the thorough ones too."""
    alive = {m.id: {"id": m.id, "seconds": 0.0} for m in mutants}
    courts = []
    for thorough in (False, True):
        for op in ops:
            if not thorough:
                courts.append(Court(OWN[op]))
            court = courts[ops.index(op)]
            checks = {m: court.reached(m) for m in mutants if m.id in alive}
            if thorough:
                checks = {m: court.thorough for m, some in checks.items() if some and m.id not in explained}
            gc.collect()
            gc.freeze()
            for mutant, said in forked([m for m in checks if checks[m]], partial(_judge, court, checks), jobs):
                seconds = alive[mutant.id]["seconds"] + said.pop("seconds", 0.0)
                alive[mutant.id] |= said | {"seconds": seconds}
                if said.get("by"):
                    yield alive.pop(mutant.id)
    yield from alive.values()


def _judge(court: Court, checks: dict[Mutant, list[Any]], mutant: Mutant) -> Iterator[dict[str, Any]]:
    return court.judge(mutant, checks[mutant])


def main() -> None:
    order = json.loads(sys.stdin.readline())
    prepare()
    torch.set_num_threads(1)
    wanted = set(order["mutants"])
    mutants = [m for m in all_mutants() if m.id in wanted]
    for outcome in judged(order["ops"], mutants, set(order["explained"]), order["jobs"]):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
