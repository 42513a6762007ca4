"""`python -m tests.properties.false_alarms`: correct forms of every op, seed after seed.

Each form is judged in values and all gradients, on random cases of each op and dtype with all that the op offers:
optional inputs, options, a second packing, inputs of other dtypes than the tokens. It runs on every core, seed by seed,
so that a run that is cut short, by `--seconds` or by an interrupt, has judged each op about as far as every other. Exit
code 1 for a false alarm, 3 if seeds, or something that an op offers, were not judged.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from packproof.base.names import short_dtype
from packproof.base.wording import plural
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.execution.torch_state import TorchState
from packproof.harness.process.parallel import run_on_every_core
from packproof.properties.bounds.budget import score
from packproof.properties.bounds.oracle import OracleAnswer, oracle_answer, with_promises
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS
from tests.properties import delta_forms
from tests.properties.forms import Kernel, forms

DTYPES = ("float64", "float32", "bfloat16", "float16")
CASES = 4  # of each seed
_MOST_TOKENS = 120  # several chunks; more would cost the references seconds
_AT_ONCE = 5  # seeds of one process
_BEFORE = TorchState()


@dataclass(frozen=True)
class Judged:
    """One seed of an op and dtype.

    judgements: pairs of case and form. offered: how many cases had each thing that the op offers. seconds: of one core.
    false: what broke the budget, as text.
    """

    op: str
    dtype: str
    seed: int
    cases: int
    judgements: int
    offered: Mapping[str, int]
    seconds: float
    false: tuple[str, ...]


def space(op: str, dtype: str) -> Space:
    declared = OPS[op]
    float32, narrow = tuple(sorted(declared.float32)), tuple(sorted(declared.narrow))
    return Space(declared, dtype, delta_forms.CUMSUM, max_tokens=_MOST_TOKENS, float32=float32, narrow=narrow)


def offers(within: Space) -> list[str]:
    """What a case of an op may have besides the plain."""
    named = [f"{name}={value}" for name, values in within.options.items() for value in values[1:]]
    mixed = [f"{', '.join(names)} in fp32" for names in within.float32_sets if names]
    mixed += [f"{name} in 16 bits" for names in within.narrow_sets for name in names]
    return [*within.optional_inputs, *named, *mixed, *(["keys of their own"] if within.packs_keys else [])]


def has(case: Case) -> list[str]:
    """What of it this case has."""
    named = [f"{name}={value}" for name, value in case.options]
    mixed = [f"{', '.join(case.float32)} in fp32"] if case.float32 else []
    mixed += [f"{name} in 16 bits" for name in case.narrow]
    return [*case.present, *named, *mixed, *(["keys of their own"] if case.key_lengths is not None else [])]


def broken(kernel: Kernel, sample: Sample, want: OracleAnswer) -> dict[str, float]:
    """The tensors that break the budget, and by how much."""
    result = InProcess(kernel, snapshot=_BEFORE).run(sample.call(gradients=sample.op.differentiable))
    got = {TensorKey(name): y for name, y in result.outputs.items()}
    unreached = {gradient(n): torch.zeros_like(sample.inputs[n]) for n in sample.wrt if sample.op.differentiable}
    got |= unreached | {gradient(name): g for name, g in result.gradients.items()}
    assert set(got) == set(want.values), (
        f"{sorted(map(str, got))} came but {sorted(map(str, want.values))} was expected"
    )
    worst = {str(n): float(score(x, want.values[n], want.budgets[n].total).max()) for n, x in got.items() if x.numel()}
    return {name: found for name, found in worst.items() if not found <= 1}


def judgements(
    op: str, dtype: str, case: Case, wrong_forms: Mapping[str, tuple[Kernel, Promises]] | None = None
) -> Iterator[tuple[str, dict[str, float]]]:
    """Each form, and what breaks the budget. wrong_forms: instead of the correct ones."""
    sample, memo = draw(OPS[op], case), dict[Any, OracleAnswer]()
    for name, (kernel, promises) in (wrong_forms or forms(op, dtype)).items():
        kept = promises if promises.cumsum else None  # what the sums of absolute terms depend on
        if kept not in memo:
            memo[kept] = oracle_answer(sample, promises, gradients=sample.op.differentiable)
        yield name, broken(kernel, sample, with_promises(memo[kept], sample, promises))


def judged(op: str, dtype: str, seeds: Sequence[int]) -> Iterator[Judged]:
    within = space(op, dtype)
    for seed in seeds:
        started, offered, false, count = time.process_time(), dict.fromkeys(offers(within), 0), list[str](), 0
        cases = random_cases(within, CASES, seed)
        for case in cases:
            offered |= {thing: offered[thing] + 1 for thing in has(case) if thing in offered}
            for form, found in judgements(op, dtype, case):
                count += 1
                false += [f"{form}, {case}: {found}"] if found else []
        seconds = round(time.process_time() - started, 2)
        yield Judged(op, dtype, seed, len(cases), count, offered, seconds, tuple(false))


def unjudged(op: str, done: Sequence[Judged]) -> list[str]:
    """What an op offers that no case had."""
    return [thing for thing in offers(space(op, "bfloat16")) if not any(found.offered.get(thing) for found in done)]


def summary(done: Sequence[Judged], ops: Sequence[str], seeds: int) -> Iterator[str]:
    """A line for each op and dtype, and one for each false alarm."""
    for op in ops:
        for dtype in DTYPES:
            here = [found for found in done if (found.op, found.dtype) == (op, dtype)]
            cases, count = (sum(getattr(found, name) for found in here) for name in ("cases", "judgements"))
            false, took = sum(len(found.false) for found in here), sum(found.seconds for found in here)
            yield (
                f"{op:<24}{short_dtype(dtype)}  {len(here):>4} of {plural(seeds, 'seed')}, {plural(cases, 'case')}, "
                f"{len(forms(op, dtype))} forms, {plural(count, 'judgement')}: {plural(false, 'false alarm')}; "
                f"{took:.0f} s of one core"
            )
    for op in ops:
        if never := unjudged(op, [found for found in done if found.op == op]):
            yield f"NOT JUDGED {op}: {'; '.join(never)}"
    for found in done:
        yield from (
            f"FALSE ALARM {found.op} {short_dtype(found.dtype)}, seed {found.seed}: {text}" for text in found.false
        )


def status(done: Sequence[Judged], ops: Sequence[str], seeds: int) -> int:
    """The exit code."""
    if any(found.false for found in done):
        return 1
    missing = len(done) < len(ops) * len(DTYPES) * seeds or not all(found.judgements for found in done)
    return 3 if missing or any(unjudged(op, [f for f in done if f.op == op]) for op in ops) else 0


def units(ops: Sequence[str], seeds: Sequence[int]) -> list[Callable[[], Iterator[Judged]]]:
    """Every op and dtype at some seeds, then at the next."""
    parts = [seeds[k : k + _AT_ONCE] for k in range(0, len(seeds), _AT_ONCE)]
    return [partial(judged, op, dtype, part) for part in parts for op in ops for dtype in DTYPES]


def main(arguments: Sequence[str] | None = None, run: Callable[..., Iterator[Judged]] = run_on_every_core) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--op", nargs="+", choices=list(OPS), default=list(OPS), metavar="OP", help="all if left out")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--workers", type=int, default=64, help="processes, if there are as many cores")
    parser.add_argument("--json", type=Path, help="append each seed of each op and dtype to this file, as a line")
    asked = parser.parse_args(arguments)
    started, done = time.monotonic(), list[Judged]()
    todo = units(asked.op, range(asked.first, asked.first + asked.seeds))
    try:
        until = started + asked.seconds
        for found in run(todo, "cpu", record_type=Judged, max_processes=asked.workers, deadline=until):
            done.append(found)
            if asked.json:
                with asked.json.open("a") as lines:
                    lines.write(json.dumps(asdict(found)) + "\n")
    except KeyboardInterrupt:
        print("interrupted")
    print(*summary(done, asked.op, asked.seeds), sep="\n")
    print(
        f"{len(done)} of {len(asked.op) * len(DTYPES) * asked.seeds} judged, "
        f"{sum(bool(found.false) for found in done)} with a false alarm; {time.monotonic() - started:.0f} s"
    )
    return status(done, asked.op, asked.seeds)


if __name__ == "__main__":
    sys.exit(main())
