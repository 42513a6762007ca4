"""How good the checks are, in numbers: one report from the runs of the museum, of correct kernels and of mutants.

The runs are files of `packproof museum run`, `compare` and `alarms` and of `packproof mutate`, all with --json, and of
`smallest_errors`: `make proof` makes them.
"""

import platform
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from packproof.base.errors import UsageError
from packproof.base.files import damaged_error, read_json
from packproof.harness.check import PROFILES
from packproof.harness.report.formats import markdown_table, texts
from packproof.museum import classes as bug_classes
from packproof.proof.smallest_errors import section
from packproof.properties.cases import BOUNDARY_CLASSES, Space, golden_cases, random_cases
from packproof.properties.declarations import Promises
from packproof.properties.ops import OPS
from packproof.version import __version__

PARTS = ("museum", "recipes", "alarms", "errors", "mutants")

Row = Mapping[str, Any]


def report(folder: Path) -> dict[str, Any]:
    """The numbers of the report.

    folder: has a JSON file of each part.

    Raises UsageError if one is missing.
    """
    museum, recipes, alarms, errors, mutants = (_results(folder / f"{part}.json") for part in PARTS)
    made_with = {"packproof": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return {
        "version": 1,
        **made_with,
        "museum": _museum(museum),
        "recipes": _recipes(recipes),
        "alarms": _alarms(alarms),
        "errors": errors,
        "coverage": {name: _coverage(name) for name in OPS},
        "mutants": _mutants(mutants),
    }


def _results(file: Path) -> list[Row]:
    if not file.exists():
        raise UsageError(f"{file}: No such file or directory; `make proof` writes it")
    data = read_json(file, str(file), "`make proof`")
    results = data.get("results") if isinstance(data, dict) else None
    if not isinstance(results, list):
        raise damaged_error(file, "it has no list of results", "`make proof`")
    return results


def _museum(results: Sequence[Row]) -> dict[str, Any]:
    ran = [r for r in results if r["status"] != "skipped"]
    detected = [r for r in ran if r["status"] == "detected"]
    return {
        "run": len(ran),
        "detected": len(detected),
        "need a GPU": len(results) - len(ran),
        "seconds": _spread(r["seconds"] for r in detected),
        "examples": _spread(r["examples"] for r in detected),
        "by class": _rates(ran, "class", bug_classes()),
        "by tier": _rates(ran, "tier", ("eager", "interpret", "gpu")),
        "by property": dict(Counter(r["property"] for r in detected).most_common()),
        "missed": [r["id"] for r in ran if r["status"] == "missed"],
    }


def _rates(ran: Sequence[Row], key: str, kinds: Iterable[str]) -> dict[str, Any]:
    """The number of entries of each kind, and of detected ones."""
    groups = {kind: [r for r in ran if r[key] == kind] for kind in kinds}
    return {
        kind: {"run": len(group), "detected": sum(r["status"] == "detected" for r in group)}
        for kind, group in groups.items()
        if group
    }


def _spread(values: Iterable[float]) -> dict[str, float]:
    numbers = list(values)
    return {"median": statistics.median(numbers), "worst": max(numbers)} if numbers else {}


def _recipes(results: Sequence[Row]) -> dict[str, Any]:
    """The entries and the correct kernels rejected by each recipe; packproof's own are in `alarms`."""
    buggy, correct = ([r for r in results if (r["class"] is not None) == real] for real in (True, False))
    names = list(dict.fromkeys(name for r in buggy for name in r["caught_by"]))
    return {
        "bugs": len(buggy),
        "correct kernels": len(correct),
        "caught": {name: sum(name in r["caught_by"] for r in buggy) for name in names},
        "rejected": {name: sum(name in r["caught_by"] for r in correct) for name in names},
    }


def _alarms(results: Sequence[Row]) -> dict[str, Any]:
    return {
        "correct kernels": len(results),
        "seeds": min((r["seeds"] for r in results), default=0),
        "judgements": sum(r["judged"] for r in results),
        "false": sum(len(r["false"]) for r in results),
        "rejected": sum(bool(r["false"]) for r in results),
    }


def _coverage(name: str) -> dict[str, Any]:
    """The layout classes drawn for an op by the standard profile."""
    space = Space(OPS[name], "float32", Promises())
    cases = [*golden_cases(space), *random_cases(space, PROFILES["standard"].examples["eager"], 0)]
    classes = frozenset[str]().union(*map(space.boundary_classes, cases))
    missed = [name for name in BOUNDARY_CLASSES if name not in classes]
    return {"drawn": len(classes), "of": len(BOUNDARY_CLASSES), "missed": missed}


def _mutants(results: Sequence[Row]) -> dict[str, Any]:
    count = Counter(r["status"] for r in results)
    killed, equivalent = count["killed"], count["equivalent"]
    reasons = {kind: Counter(r["reason"] for r in results if r["status"] == kind) for kind in ("equivalent", "beyond")}
    return {
        "all": len(results),
        "killed": killed,
        "equivalent": equivalent,
        "beyond": count["beyond"],
        "killed of all": round(killed / max(len(results), 1), 4),
        "killed of those that differ": round(killed / max(len(results) - equivalent, 1), 4),
        "by": dict(Counter(r["by"] for r in results if r["by"]).most_common()),
        "by kernel": {
            name: {"all": len(group), "killed": sum(r["status"] == "killed" for r in group)}
            for name in sorted({r["file"] for r in results})
            if (group := [r for r in results if r["file"] == name])
        },
        "seconds": round(sum(r["seconds"] for r in results)),
        "reasons": {kind: dict(counts.most_common()) for kind, counts in reasons.items()},
        "survivors": [{"id": r["id"], "was": r["was"], "now": r["now"]} for r in results if r["status"] == "survived"],
    }


def markdown(figures: Mapping[str, Any], numbers: str) -> str:
    """The report as Markdown.

    numbers: the path of the file of numbers, relative to the page.
    """
    return "\n".join(_lines(figures, numbers)) + "\n"


def _lines(figures: Mapping[str, Any], numbers: str) -> Iterator[str]:
    museum, alarms, mutants, recipes = (figures[name] for name in ("museum", "alarms", "mutants", "recipes"))
    versions = f"packproof {figures['packproof']}, torch {figures['torch']}, Python {figures['python']}"
    yield from (
        "# The proof, proven",
        "",
        f"By `make proof`, on a CPU with {versions}.",
        f"The numbers are in [{numbers.rpartition('/')[2]}]({numbers}).",
        "",
        "## Bugs that kernels have had",
        "",
        f"{museum['detected']} of {museum['run']} are detected at the standard profile, each by a property that its "
        f"entry names; {museum['need a GPU']} {'needs' if museum['need a GPU'] == 1 else 'need'} a GPU.",
        f"Until detection: {_range(museum['seconds'], 's')}; {_range(museum['examples'], 'examples')}.",
        "",
    )
    for kind in ("class", "tier"):
        rows = museum[f"by {kind}"].items()
        yield from _table((kind, "detected"), [(name, f"{n['detected']} of {n['run']}") for name, n in rows])
    yield from _table(("property", "detects first"), museum["by property"].items())
    rejected = recipes["rejected"] | {"packproof": alarms["rejected"]}
    yield from ("## What the recipes of public suites catch of them", "")
    yield from _table(
        ("recipe", f"bugs, of {recipes['bugs']}", f"correct kernels rejected, of {recipes['correct kernels']}"),
        [(name, n, rejected[name]) for name, n in recipes["caught"].items()],
    )
    yield from (
        "## False alarms",
        "",
        f"{alarms['false']} in {alarms['judgements']} judgements: {alarms['correct kernels']} correct kernels, "
        f"{alarms['seeds']} seeds, every property, all dtypes (`packproof museum alarms`).",
        "",
    )
    yield from section(figures["errors"])
    yield from ("## Layouts", "")
    yield from _table(
        ("op", "boundary classes drawn at the standard profile", "missed"),
        [(op, f"{n['drawn']} of {n['of']}", ", ".join(n["missed"])) for op, n in figures["coverage"].items()],
    )
    yield from (
        "## Mutants of packproof's own Triton kernels",
        "",
        f"{mutants['killed']} of {mutants['all']} are killed ({mutants['killed of all']:.1%}); "
        f"{mutants['equivalent']} of the others compute the same, so that {mutants['killed of those that differ']:.1%} "
        f"of those that differ are killed. {mutants['beyond']} are incorrect, but only other tiles or sizes would show "
        f"it. `tools/proof/mutants/equivalents.json` lists them one by one. {mutants['seconds']} CPU seconds.",
        "",
    )
    yield from _table(
        ("kernels", "killed"), [(name, f"{n['killed']} of {n['all']}") for name, n in mutants["by kernel"].items()]
    )
    yield from _table(("killed by", "mutants"), mutants["by"].items())
    yield from _table(("why a survivor computes the same", "mutants"), mutants["reasons"]["equivalent"].items())
    yield from _table(("why a survivor is incorrect out of reach", "mutants"), mutants["reasons"]["beyond"].items())
    if mutants["survivors"]:
        yield from _table(
            ("survivor without a reason", "was", "now"),
            [(m["id"], f"`{m['was']}`", f"`{m['now']}`") for m in mutants["survivors"]],
        )


def _range(spread: Mapping[str, float], unit: str) -> str:
    return f"median {spread['median']:g} {unit}, worst {spread['worst']:g}" if spread else "none"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield from markdown_table(texts(*head), [tuple(map(str, row)) for row in rows])
    yield ""
