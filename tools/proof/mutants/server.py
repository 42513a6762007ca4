"""The evaluation process for mutants: it loads kernels, references and properties; the mutants run in its forks.

Run as `python -m packproof.proof.mutants.server` with TRITON_INTERPRET=1. Reads an order from stdin, one
line of JSON: "ops", "mutants" (ids), "equivalents" (ids of expected survivors), "first" (by id, the op, the property
and the case of a check) and "jobs". Writes one outcome per line. A survivor has no "by". If no check executes the
changed line, the outcome has no "op".
"""

import gc
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from packproof.harness.check.targets import BUILTIN_KERNELS
from packproof.harness.process import prepare_imports
from packproof.proof.mutants.evaluator import ROUNDS, Check, MutantEvaluator
from packproof.proof.mutants.fork_pool import run_forked
from packproof.proof.mutants.mutant import Mutant, all_mutants

Outcome = dict[str, Any]


def outcomes(
    ops: list[str], mutants: list[Mutant], equivalents: set[str], first_checks: dict[str, list[str]], jobs: int
) -> Iterator[Outcome]:
    """Evaluate the mutants round by round: each round takes the unexplained survivors of the one before.

    equivalents: ids of expected survivors; they get a glance of the first round only.
    first_checks: by id, the op, the property and the case of a check to run before all rounds.
    """
    alive: dict[str, Outcome] = {m.id: {"id": m.id, "seconds": 0.0} for m in mutants}
    evaluators = {op: MutantEvaluator(BUILTIN_KERNELS[op]) for op in ops}

    def run(evaluator: MutantEvaluator, checks: dict[Mutant, list[Check]]) -> Iterator[Outcome]:
        gc.collect()
        gc.freeze()
        for mutant, report in run_forked([m for m in checks if checks[m]], partial(_evaluate, evaluator, checks), jobs):
            seconds = alive[mutant.id]["seconds"] + report.pop("seconds", 0.0)
            alive[mutant.id] |= report | {"seconds": seconds}
            if report.get("by"):
                yield alive.pop(mutant.id)

    for op, evaluator in evaluators.items():
        descriptions = {
            m: (first_checks[m.id][1], first_checks[m.id][2]) for m in mutants if first_checks.get(m.id, [""])[0] == op
        }
        yield from run(evaluator, evaluator.find_checks(descriptions))
    for k in ROUNDS:
        for evaluator in evaluators.values():
            remaining = [m for m in mutants if m.id in alive and m.module in evaluator.modules]
            remaining = [m for m in remaining if k == 0 or m.id not in equivalents]
            yield from run(evaluator, {m: evaluator.checks(k, m, glance=m.id in equivalents) for m in remaining})
    yield from alive.values()


def _evaluate(
    evaluator: MutantEvaluator, checks: dict[Mutant, list[Check]], mutant: Mutant
) -> Iterator[dict[str, Any]]:
    return evaluator.evaluate(mutant, checks[mutant])


def main() -> None:
    order = json.loads(sys.stdin.readline())
    prepare_imports()
    torch.set_num_threads(1)
    ids = set(order["mutants"])
    mutants = [m for m in all_mutants() if m.id in ids]
    for outcome in outcomes(order["ops"], mutants, set(order["equivalents"]), order["first"], order["jobs"]):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
