"""The command line of mutants of the kernels in CUDA C++: `python -m tests.kernels.mutants`."""

import argparse
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from packproof.base.files import replace_text
from packproof.base.machine import available_cores
from packproof.base.wording import plural
from packproof.proof.mutants import as_json, killers_text, listed, read_killers, sample, summary, survived
from packproof.proof.mutants.equivalents import Explanation
from packproof.proof.mutants.mutant import KERNELS, Mutant
from packproof.proof.mutants.outcome import MutantOutcome
from packproof.proof.mutants.run import digest_of, resumed
from packproof.proof.mutants.table import wrongly_explained
from tests.kernels.mutants.mutant import all_mutants, explanations_of

NOT_COMPILED = "not compiled"
_SECONDS_OF_A_MUTANT = 4  # of a core, measured on a sample, with the share of survivors
_SECONDS_OF_CHECKS = 300  # to run them on the unchanged kernels first


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a mutant survives that is not explained, or one is killed that is explained."""
    options = _parser().parse_args(arguments)
    selected = [m for m in all_mutants() if re.search(options.select, m.id)]
    mutants = _shard(sample(selected, options.sample, options.seed), options.shard)
    known = explanations_of(mutants)
    seconds = _SECONDS_OF_CHECKS + len(mutants) * _SECONDS_OF_A_MUTANT
    print(f"{plural(len(mutants), 'mutant')}, some {seconds:,} s of a core", flush=True)
    if options.list:
        print("\n".join(listed(mutants)))
        return 0
    start = time.monotonic()
    outcomes = _evaluated(mutants, known, options)
    counted = [o for o in outcomes if o.killed_by != NOT_COMPILED]
    contradictions = wrongly_explained(counted, known)
    print("\n".join([*contradictions, *summary(counted, known, time.monotonic() - start)]))
    print(f"not counted: {len(outcomes) - len(counted)} that do not compile")
    if options.json:
        replace_text(options.json, as_json(counted, {m.id: m for m in mutants}, known))
    unexplained = [o for o in counted if not o.killed_by and o.id not in known]
    return 1 if unexplained or contradictions else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.mutants", description=__doc__)
    parser.add_argument("--select", default="", help="only mutants with this regular expression in their ids")
    parser.add_argument("--sample", type=int, help="only so many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="1/1", help="i/n: the part i, from 1, of n parts of the mutants")
    parser.add_argument("--jobs", type=int, default=available_cores())
    parser.add_argument("--resume", type=Path, help="a file of outcomes: those in it are taken over, others appended")
    parser.add_argument("--killers", type=Path, help="a file with the check that killed each mutant: it runs first")
    parser.add_argument("--json", type=Path, help="the results as JSON")
    parser.add_argument("--list", action="store_true", help="show the mutants and run none")
    return parser


def _shard(mutants: Sequence[Mutant], shard: str) -> list[Mutant]:
    """Every n-th mutant, so that each part has some of all files."""
    number, count = map(int, shard.split("/"))
    if not 1 <= number <= count:
        raise SystemExit(f"--shard {shard}: i/n with i from 1 to n was expected")
    return list(mutants[number - 1 :: count])


def _evaluated(
    mutants: Sequence[Mutant], known: Mapping[str, Explanation], options: argparse.Namespace
) -> list[MutantOutcome]:
    """The outcomes; unexplained survivors are printed."""
    from tests.kernels.mutants.evaluator import outcomes  # noqa: PLC0415  (imports Triton)

    first_checks = read_killers(options.killers) if options.killers else {}
    by_id, done = {m.id: m for m in mutants}, []
    evaluation = resumed(
        mutants, lambda remaining: outcomes(remaining, known, first_checks, options.jobs), options.resume, _digest()
    )
    for outcome in evaluation:
        done.append(outcome)
        if not outcome.killed_by and outcome.id not in known:
            print(survived(outcome, by_id[outcome.id]), flush=True)
        print(f"{len(done)} of {len(mutants)}: {outcome.id} {outcome.killed_by}", file=sys.stderr, flush=True)
    if options.killers:
        replace_text(options.killers, killers_text(first_checks, done, {m.id for m in all_mutants()}))
    return done


def _digest() -> str:
    """Of the sources that outcomes depend on."""
    folders = (KERNELS, *map(KERNELS.with_name, ("base", "properties", "refs")), KERNELS.parent / "tests" / "kernels")
    files = (file for folder in folders for file in sorted(folder.rglob("*")))
    return digest_of("emulator", (file for file in files if file.suffix in {".py", ".cu", ".cuh", ".h", ".cpp"}))


if __name__ == "__main__":
    sys.exit(main())
