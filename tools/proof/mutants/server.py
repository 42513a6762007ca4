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
    """Evaluate the mutants round by round: each round takes the survivors of the one before.

    Yields the outcome of a mutant when it is killed, and the outcomes of the survivors at the end.

    equivalents: ids of expected survivors. They take part in the first round only, with checks of about a second.
    first_checks: by id, the op, the property and the case of a check to run before all rounds.
    """
    survivors: dict[str, Outcome] = {m.id: {"id": m.id, "seconds": 0.0} for m in mutants}
    evaluators = {op: MutantEvaluator(BUILTIN_KERNELS[op]) for op in ops}

    def run(evaluator: MutantEvaluator, checks: dict[Mutant, list[Check]]) -> Iterator[Outcome]:
        gc.collect()
        gc.freeze()  # a collection in a fork would write to the pages shared with this process, and so copy them
        for mutant, report in run_forked([m for m in checks if checks[m]], partial(_evaluate, evaluator, checks), jobs):
            seconds = survivors[mutant.id]["seconds"] + report.pop("seconds", 0.0)
            survivors[mutant.id] |= report | {"seconds": seconds}
            if report.get("by"):
                yield survivors.pop(mutant.id)

    for evaluator in evaluators.values():
        descriptions = {}
        for mutant in mutants:
            op, law, case = first_checks.get(mutant.id, ("", "", ""))
            if op == evaluator.op:
                descriptions[mutant] = (law, case)
        yield from run(evaluator, evaluator.find_checks(descriptions))
    for round_number in ROUNDS:
        for evaluator in evaluators.values():
            candidates = [m for m in mutants if m.id in survivors and m.module in evaluator.modules]
            if round_number > 0:
                candidates = [m for m in candidates if m.id not in equivalents]
            checks = {m: evaluator.checks(round_number, m, glance=m.id in equivalents) for m in candidates}
            yield from run(evaluator, checks)
    yield from survivors.values()


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
