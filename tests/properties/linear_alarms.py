"""`python -m tests.properties.linear_alarms`: correct forms of linear attention and the delta rule, seed after seed.

Each form is judged in values and all gradients, on random cases of each op and dtype; on every core, seed by seed, so
that a run that is cut short, by `--seconds` or by an interrupt, has judged each op about as far as every other. Exit
code 1 for a false alarm, 3 if seeds are missing.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packproof.harness.execution.execute import InProcess
from packproof.harness.execution.torch_state import TorchState
from packproof.harness.results.names import short
from packproof.harness.worker.parallel import on_every_core
from packproof.properties.bounds.budget import score
from packproof.properties.bounds.oracle import Expected, expected, with_promises
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, random_cases
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.properties.tensor_key import TensorKey, gradient
from packproof.refs.wording import counted
from tests.properties import delta_forms, linear_forms
from tests.properties.linear_bugs import DELTA, LINEAR

DTYPES = ("bfloat16", "float32")
CASES = 4  # of each seed
_AT_ONCE = 5  # seeds of one process
_BEFORE = TorchState()


@dataclass(frozen=True)
class Alarms:
    """One seed of an op and dtype: how many forms were judged, the seconds of one core, and what broke the budget."""

    op: str
    dtype: str
    seed: int
    forms: int
    seconds: float
    false: tuple[str, ...]


def broken(kernel: Callable[..., Any], sample: Sample, want: Expected) -> dict[str, float]:
    """The tensors that break the budget, and by how much."""
    result = InProcess(kernel, snapshot=_BEFORE).run(sample.call())
    got = {TensorKey(name): y for name, y in result.outputs.items()}
    got |= {gradient(name): g for name, g in result.gradients.items()}
    worst = {str(n): float(score(x, want.values[n], want.budgets[n].total).max()) for n, x in got.items() if x.numel()}
    return {name: found for name, found in worst.items() if not found <= 1}


def forms(op: str, dtype: str) -> dict[str, tuple[Callable[..., Any], Promises]]:
    """In 16 bits one that rounds its operands too."""
    of_family = delta_forms if op in DELTA else linear_forms
    found = of_family.forms(op)
    if dtype == "bfloat16":
        recurrence, promises = of_family.ROUNDING
        found["rounded operands"] = of_family.form(op, recurrence), promises
    return found


def alarms(op: str, dtype: str, seed: int) -> Iterator[tuple[str, str, dict[str, float]]]:
    """The form, the case, and what breaks the budget."""
    for case in random_cases(Space(OPS[op], dtype, delta_forms.CUMSUM), CASES, seed):
        sample, memo = draw(OPS[op], case), dict[bool, Expected]()
        for name, (kernel, promises) in forms(op, dtype).items():
            if promises.cumsum not in memo:
                memo[promises.cumsum] = expected(sample, promises, gradients=True)
            if found := broken(kernel, sample, with_promises(memo[promises.cumsum], sample, promises)):
                yield name, str(case), found


def judged(op: str, dtype: str, seeds: Sequence[int]) -> Iterator[Alarms]:
    for seed in seeds:
        started = time.process_time()
        false = tuple(f"{name}, {case}: {found}" for name, case, found in alarms(op, dtype, seed))
        yield Alarms(op, dtype, seed, len(forms(op, dtype)), round(time.process_time() - started, 2), false)


def summary(done: Sequence[Alarms], seeds: int) -> Iterator[str]:
    """A line for each op and dtype, and one for each false alarm."""
    for op in (*LINEAR, *DELTA):
        for dtype in DTYPES:
            here = [found for found in done if (found.op, found.dtype) == (op, dtype)]
            false = sum(len(found.false) for found in here)
            took = sum(found.seconds for found in here)
            yield (
                f"{op:<18}{short(dtype)}  {len(here):>4} of {counted(seeds, 'seed')}, {CASES} cases of each, "
                f"{len(forms(op, dtype))} forms: {counted(false, 'false alarm')}; {took:.0f} s of one core"
            )
    for found in done:
        yield from (f"FALSE ALARM {found.op} {short(found.dtype)}, seed {found.seed}: {text}" for text in found.false)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--json", type=Path, help="write each seed of each op and dtype to this file")
    asked = parser.parse_args(arguments)
    seeds = range(asked.first, asked.first + asked.seeds)
    parts = [seeds[k : k + _AT_ONCE] for k in range(0, len(seeds), _AT_ONCE)]
    units = [partial(judged, op, dtype, part) for part in parts for op in (*DELTA, *LINEAR) for dtype in DTYPES]
    total = len(seeds) * (len(DELTA) + len(LINEAR)) * len(DTYPES)
    started, done = time.monotonic(), list[Alarms]()
    try:
        for found in on_every_core(units, "cpu", of=Alarms, until=started + asked.seconds):
            done.append(found)
    except KeyboardInterrupt:
        print("interrupted")
    print(*summary(done, len(seeds)), sep="\n")
    ways = Counter(bool(found.false) for found in done)
    print(f"{len(done)} of {total} judged, {ways[True]} with a false alarm; {time.monotonic() - started:.0f} s")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(found) for found in done], indent=1) + "\n")
    return 1 if ways[True] else 3 if len(done) < total else 0


if __name__ == "__main__":
    sys.exit(main())
