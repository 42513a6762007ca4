"""The output of `packproof mutate`, and its results as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from packproof.harness.report.formats import Column, table_line
from packproof.proof.mutants.equivalents import Explanation
from packproof.proof.mutants.mutant import Mutant
from packproof.proof.mutants.outcome import MutantOutcome
from packproof.version import __version__

_COLUMNS = (Column("module", 26), Column("killed", 5, right=True), Column("all", 9), Column(""))


def listed(mutants: Iterable[Mutant]) -> list[str]:
    """Each mutant: its id and its diff."""
    return [f"{m.id}\n{m.diff}" for m in mutants]


def survived(outcome: MutantOutcome, mutant: Mutant) -> str:
    """An unexplained survivor."""
    return f"SURVIVED {mutant.id}\n{mutant.diff}" + ("" if outcome.op else "\n  no check executes this line")


def summary(done: Sequence[MutantOutcome], known: Mapping[str, Explanation], seconds: float) -> list[str]:
    """Counts per module and per killer, and the kill rates: of all mutants, and without equivalent ones."""
    killed = [o for o in done if o.killed_by]
    equal = [o for o in done if not o.killed_by and o.id in known and not known[o.id].out_of_reach]
    beyond = [o for o in done if not o.killed_by and o.id in known and known[o.id].out_of_reach]
    modules = dict.fromkeys(o.id.split(":")[0] for o in done)
    lines = [
        table_line(_COLUMNS, (module, str(_count(module, killed)), f" of {_count(module, done)}", " killed"))
        for module in modules
    ]
    by = ", ".join(f"{name} {count}" for name, count in Counter(o.killed_by for o in killed).most_common())
    ratio = len(killed) / max(len(done), 1), len(killed) / max(len(done) - len(equal), 1)
    return [
        *lines,
        f"killed by: {by or 'nothing'}",
        f"{len(killed)} of {len(done)} killed ({ratio[0]:.1%}), of those that are not equivalent {ratio[1]:.1%}",
        f"survivors: {len(equal)} equivalent, {len(beyond)} beyond the interpreter's tiles and sizes, "
        f"{len(done) - len(killed) - len(equal) - len(beyond)} unexplained",
        f"{seconds:.0f} s, {sum(o.seconds for o in done):.0f} s of CPUs in mutants",
    ]


def _count(module: str, outcomes: Iterable[MutantOutcome]) -> int:
    return sum(outcome.id.startswith(f"{module}:") for outcome in outcomes)


def wrongly_explained(done: Iterable[MutantOutcome], known: Mapping[str, Explanation]) -> list[str]:
    """Killed mutants with an explanation as survivors."""
    return [
        f"{o.id} is explained as a survivor, but {o.killed_by} killed it at {o.case}"
        for o in done
        if o.killed_by and o.id in known
    ]


def as_json(done: Iterable[MutantOutcome], mutants: Mapping[str, Mutant], known: Mapping[str, Explanation]) -> str:
    """A run as JSON."""
    results = [
        {
            "id": o.id,
            "status": "killed"
            if o.killed_by
            else "survived"
            if o.id not in known
            else "beyond"
            if known[o.id].out_of_reach
            else "equivalent",
            "by": o.killed_by,
            "op": o.op,
            "property": o.property,
            "case": o.case,
            "seconds": round(o.seconds, 3),
            "file": f"kernels/{mutants[o.id].file}",
            "line": mutants[o.id].line,
            "was": mutants[o.id].change[0],
            "now": mutants[o.id].change[1],
            "reason": known[o.id].reason if o.id in known else "",
        }
        for o in done
    ]
    return json.dumps({"version": 1, "packproof": __version__, "results": results}, indent=1) + "\n"
