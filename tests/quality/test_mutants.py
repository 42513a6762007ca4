"""A small sample of the mutants of packproof's own kernels: each is killed or explained.

Of the modules whose mutants have all been run, which data/killers.json has; `packproof mutate` runs them all, in
`make proof`. A change of the kernels draws another sample.
"""

import zlib
from pathlib import Path

from packproof.proof.mutants import killers
from packproof.proof.mutants.equivalents import find_explanations
from packproof.proof.mutants.mutant import KERNELS, all_mutants
from packproof.proof.mutants.run import OPS, run, sample

SIZE = 2
KILLERS = Path(__file__).parents[2] / "data/killers.json"


def test_a_sample_of_mutants_is_killed_or_explained() -> None:
    seed = zlib.crc32(b"".join(file.read_bytes() for file in sorted(KERNELS.glob("*.py"))))
    run_before = {name.partition(":")[0] for name in killers.read_killers(KILLERS)}
    mutants = sample([m for m in all_mutants() if m.id.partition(":")[0] in run_before], SIZE, seed)
    known = find_explanations(mutants)
    done = {o.id: o for o in run(mutants, OPS, jobs=2, first_checks=killers.read_killers(KILLERS))}
    assert len(done) == SIZE
    assert [m.id + "\n" + m.diff for m in mutants if not done[m.id].killed_by and m.id not in known] == []
    assert [m.id + "\n" + m.diff for m in mutants if done[m.id].killed_by and m.id in known] == []
