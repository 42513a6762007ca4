"""The process that judges mutants: kernels, references and properties are warm in it, and each mutant is a fork of it.

Run as `python -m packproof.harness.validation.mutants.server` with TRITON_INTERPRET=1. Reads an order from stdin, one
line of JSON: "ops", "mutants" (ids), "explained" (ids of those that no check is expected to detect), "first" (by id,
the op, the property and the case of a check) and "jobs". Writes an outcome a line; that of an undetected mutant has no
"by", and none has an "op" whose line no check executes.
"""

import gc
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from packproof.harness.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.harness.validation.mutants.evaluator import TURNS, Check, Court
from packproof.harness.validation.mutants.fork_pool import forked
from packproof.harness.validation.mutants.mutant import Mutant, all_mutants
from packproof.harness.worker.zygote import prepare

Outcome = dict[str, Any]


def judged(
    ops: list[str], mutants: list[Mutant], explained: set[str], first: dict[str, list[str]], jobs: int
) -> Iterator[Outcome]:
    """The outcomes, turn by turn: each goes on with those alive that nothing explains. What is to come first does."""
    alive: dict[str, Outcome] = {m.id: {"id": m.id, "seconds": 0.0} for m in mutants}
    courts = {op: Court(BUILTIN_KERNELS[op]) for op in ops}

    def turn(court: Court, checks: dict[Mutant, list[Check]]) -> Iterator[Outcome]:
        gc.collect()
        gc.freeze()
        for mutant, said in forked([m for m in checks if checks[m]], partial(_judge, court, checks), jobs):
            seconds = alive[mutant.id]["seconds"] + said.pop("seconds", 0.0)
            alive[mutant.id] |= said | {"seconds": seconds}
            if said.get("by"):
                yield alive.pop(mutant.id)

    for op, court in courts.items():
        words = {m: (first[m.id][1], first[m.id][2]) for m in mutants if first.get(m.id, [""])[0] == op}
        yield from turn(court, court.named(words))
    for k in TURNS:
        for court in courts.values():
            left = [m for m in mutants if m.id in alive and m.module in court.modules]
            left = [m for m in left if k == 0 or m.id not in explained]
            yield from turn(court, {m: court.checks(k, m, glance=m.id in explained) for m in left})
    yield from alive.values()


def _judge(court: Court, checks: dict[Mutant, list[Check]], mutant: Mutant) -> Iterator[dict[str, Any]]:
    return court.judge(mutant, checks[mutant])


def main() -> None:
    order = json.loads(sys.stdin.readline())
    prepare()
    torch.set_num_threads(1)
    wanted = set(order["mutants"])
    mutants = [m for m in all_mutants() if m.id in wanted]
    for outcome in judged(order["ops"], mutants, set(order["explained"]), order["first"], order["jobs"]):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
