"""What `packproof mutate` prints, and its results as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import packproof
from packproof.harness.mutants.mutant import Mutant
from packproof.harness.mutants.run import Outcome


def listed(mutants: Iterable[Mutant]) -> list[str]:
    """Each mutant: its id, where it differs, and how."""
    return [f"{m.id}\n{m.diff}" for m in mutants]


def survived(outcome: Outcome, mutant: Mutant, reason: str | None) -> str:
    """A survivor, with what explains it."""
    why = reason or ("" if outcome.op else "no check executes this line")
    return f"survived {mutant.id}\n{mutant.diff}" + (f"\n  {why}" if why else "")


def summary(done: Sequence[Outcome], reasons: Mapping[str, str], seconds: float) -> list[str]:
    """How many, killed by what, per module; and the rates: of all, and of those that are not equivalent."""
    killed = [o for o in done if o.by]
    equivalent = [o for o in done if not o.by and o.id in reasons]
    holes = [o for o in done if not o.by and o.id not in reasons]
    modules = dict.fromkeys(o.id.split(":")[0] for o in done)
    lines = [
        f"{module:<22}{sum(o.id.startswith(f'{module}:') for o in killed):>5} of "
        f"{sum(o.id.startswith(f'{module}:') for o in done):<5} killed"
        for module in modules
    ]
    by = ", ".join(f"{name} {count}" for name, count in Counter(o.by for o in killed).most_common())
    ratio = len(killed) / max(len(done), 1), len(killed) / max(len(done) - len(equivalent), 1)
    return [
        *lines,
        f"killed by: {by or 'nothing'}",
        f"{len(killed)} of {len(done)} killed ({ratio[0]:.1%}), {len(equivalent)} survivors are equivalent "
        f"({ratio[1]:.1%} of the others killed), {len(holes)} unexplained",
        f"{seconds:.0f} s, {sum(o.seconds for o in done):.0f} s of CPUs in mutants",
    ]


def wrongly_explained(done: Iterable[Outcome], reasons: Mapping[str, str]) -> list[str]:
    """Mutants that are said to be equivalent and are not."""
    return [
        f"{o.id} is explained as equivalent but {o.by} convicted it at {o.case}"
        for o in done
        if o.by and o.id in reasons
    ]


def as_json(done: Iterable[Outcome], mutants: Mapping[str, Mutant], reasons: Mapping[str, str]) -> str:
    """A run for programs."""
    results = [
        {
            "id": o.id,
            "status": "killed" if o.by else "equivalent" if o.id in reasons else "survived",
            "by": o.by,
            "op": o.op,
            "property": o.property,
            "case": o.case,
            "seconds": round(o.seconds, 3),
            "file": f"kernels/{mutants[o.id].module}.py",
            "line": mutants[o.id].line,
            "was": mutants[o.id].change[0],
            "now": mutants[o.id].change[1],
            "reason": reasons.get(o.id, ""),
        }
        for o in done
    ]
    return json.dumps({"version": 1, "packproof": packproof.__version__, "results": results}, indent=1) + "\n"
