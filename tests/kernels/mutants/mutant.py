"""The mutants of packproof's kernels in CUDA C++."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from packproof.kernels import cuda
from packproof.proof.mutants.equivalents import Explanation, claim_keys_of, entries, match_explanations
from packproof.proof.mutants.mutant import KERNELS, Mutant
from tests.kernels.mutants.operators import OPERATORS
from tests.kernels.mutants.tokens import Source

EQUIVALENTS = Path(__file__).with_name("equivalents.json")
SOURCES = ("causal_conv1d.cu", "selective_scan.cu", "ssd.cu", "ssd_bwd.cu")


@cache
def files_of(source: str) -> frozenset[str]:
    """A source and what it includes, without the instructions that the emulator replaces."""
    text = (KERNELS / source).read_text(encoding="utf-8")
    return frozenset({source}.union(*(files_of(part) for part in cuda._PART.findall(text))))


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """The mutants of all sources."""
    files = sorted(frozenset().union(*map(files_of, SOURCES)))
    return tuple(m for file in files for m in mutants_of(file, (KERNELS / file).read_text(encoding="utf-8")))


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of the text."""
    source, count, edits = Source(text), Counter[tuple[str, str]](), set()
    for definition in source.definitions():
        for i in definition.tokens:
            for name, operator in OPERATORS.items():
                for edit in operator(source, i) if i not in source.fixed else ():
                    if edit not in edits:
                        edits.add(edit)
                        ordinal = count[definition.name, name]
                        count[definition.name, name] += 1
                        mutant_id = f"{file}:{definition.name}:{name}:{ordinal}"
                        yield Mutant(mutant_id, file, definition.name, name, text, edit, range(0))


def explanations_of(mutants: Iterable[Mutant]) -> dict[str, Explanation]:
    """The explanations of survivors, by id."""
    return match_explanations(mutants, entries(EQUIVALENTS), claim_keys_of(all_mutants()))
