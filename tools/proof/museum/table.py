"""The output of `packproof museum`: the list, one entry, a run."""

import inspect
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from packproof.base.wording import plural
from packproof.harness.report.formats import fitted_table, texts
from packproof.museum import BugClass, Entry
from packproof.proof.museum.alarms import ControlResult
from packproof.proof.museum.detect import Detection
from packproof.proof.museum.recipes import PACKPROOF, RECIPES, RecipeComparison
from packproof.properties.cases import shorten
from packproof.version import __version__


def listed(entries: Iterable[Entry]) -> list[str]:
    """One line per entry: id, op, class, detecting properties, title."""
    rows = [(e.id, e.op, e.bug_class, ", ".join(e.properties), e.title) for e in entries]
    return fitted_table(texts("id", "op", "class", "detected by", "title"), rows)


def shown(entry: Entry, classes: Mapping[str, BugClass]) -> list[str]:
    """Everything about one entry."""
    found = [f"found at       {link}" for link in entry.links] or ["made up: not reported by any project"]
    needs = ["needs a GPU"] if entry.needs_gpu else []
    return [
        f"{entry.id} · {entry.op} · {entry.bug_class} · {entry.title}",
        f"    cause          {entry.cause}",
        f"    shows at       lengths {shorten(entry.lengths)}" + (f", {entry.when}" if entry.when else ""),
        f"    detected by    {', '.join(entry.properties)}",
        *(f"    {line}" for line in found),
        f"    kernel         {entry.kernel}",
        *(f"                   {place}" for place in places(entry)),
        *(f"    {line}" for line in needs),
        f"    {classes[entry.bug_class].title}: {classes[entry.bug_class].note}",
    ]


def places(entry: Entry) -> list[str]:
    """The place of the bug in the source: the function, or each line with the id of the entry."""
    kernel = entry.load()
    function: Callable[..., Any] = inspect.unwrap(kernel.func if isinstance(kernel, partial) else kernel)
    file = inspect.getsourcefile(function)
    if file is None:
        return []
    if not isinstance(kernel, partial):
        return [f"{_short(file)}:{inspect.getsourcelines(function)[1]}"]
    lines = enumerate(Path(file).read_text(encoding="utf-8").splitlines(), start=1)
    return [f"{_short(file)}:{number}: {line.strip()}" for number, line in lines if f'"{entry.id}"' in line]


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])


def outcome(c: Detection) -> str:
    """One line of a run."""
    head = f"{c.entry.id:<5} {c.entry.op:<15}"
    if c.skipped:
        return f"{head} skipped: {c.skipped}"
    if c.missed:
        return f"{head} NOT DETECTED by {', '.join(c.entry.properties)} in {_examples(c)}, {c.seconds:.1f} s"
    return f"{head} {c.detected_by:<12} {_examples(c):<12} {c.seconds:5.1f} s   {c.entry.title}"


def _examples(c: Detection) -> str:
    return plural(c.examples, "example")


def summary(done: Sequence[Detection], seconds: float) -> str:
    """The last line of a run."""
    ran = [c for c in done if not c.skipped]
    times = [c.seconds for c in ran if not c.missed]
    rest = len(done) - len(ran)
    parts = [f"{len(times)} of {len(ran)} detected"]
    parts += [f"median {statistics.median(times):.1f} s, worst {max(times):.1f} s"] if times else []
    parts += [f"{rest} {'needs' if rest == 1 else 'need'} a GPU"] if rest else []
    return f"{', '.join(parts)}; {seconds:.0f} s"


def control_line(a: ControlResult) -> str:
    """One line for a correct kernel, and one for each of its false alarms."""
    count = _alarms(len(a.false_alarms)) if a.false_alarms else "no alarm"
    head = f"{a.control.id:<28} {count:<16} {a.judgements:>6} judgements {a.seconds:6.1f} s   {a.control.title}"
    return "\n".join([head, *(f"    {line}" for line in a.false_alarms)])


def controls_summary(done: Sequence[ControlResult], seconds: float) -> str:
    """The last line of a run over the correct kernels."""
    false, judged = sum(len(a.false_alarms) for a in done), sum(a.judgements for a in done)
    kernels = plural(len(done), "correct kernel")
    return f"{_alarms(false)} in {plural(judged, 'judgement')} of {kernels}; {seconds:.0f} s"


def _alarms(count: int) -> str:
    return plural(count, "false alarm")


def compared(done: Sequence[RecipeComparison]) -> list[str]:
    """For each recipe, the number of detected entries of each class, and of rejected correct kernels."""
    by = [PACKPROOF, *RECIPES]
    entries = [c for c in done if isinstance(c.kernel, Entry)]
    classes = dict.fromkeys(c.kernel.bug_class for c in entries if isinstance(c.kernel, Entry))
    groups = {k: [c for c in entries if isinstance(c.kernel, Entry) and c.kernel.bug_class == k] for k in classes}
    groups["all"] = entries
    groups["correct kernels rejected"] = [c for c in done if c not in entries]
    rows = [
        (
            name,
            str(len(group)),
            *(str(sum(c.rejections[r] for c in group)) if all(r in c.rejections for c in group) else "" for r in by),
        )
        for name, group in groups.items()
        if group
    ]
    return fitted_table(texts("class", "bugs", *by), rows)


def as_json(done: Sequence[Detection], profile: str, device: str, seed: int) -> str:
    """A run as JSON."""
    results = [
        {
            "id": c.entry.id,
            "op": c.entry.op,
            "class": c.entry.bug_class,
            "status": "skipped" if c.skipped else "missed" if c.missed else "detected",
            "property": c.detected_by,
            "tier": c.tier,
            "examples": c.examples,
            "seconds": round(c.seconds, 3),
            "lengths": list(c.lengths),
            "lines": list(c.lines),
        }
        for c in done
    ]
    made_with = {"packproof": __version__, "profile": profile, "device": device, "seed": seed}
    return json.dumps({"version": 1, **made_with, "results": results}, indent=1) + "\n"


def controls_json(done: Sequence[ControlResult]) -> str:
    """The results of the correct kernels as JSON."""
    results = [
        {
            "id": a.control.id,
            "op": a.control.op,
            "seeds": a.seeds,
            "judged": a.judgements,
            "seconds": round(a.seconds, 1),
            "false": list(a.false_alarms),
        }
        for a in done
    ]
    return json.dumps({"version": 1, "packproof": __version__, "results": results}, indent=1) + "\n"


def compared_json(done: Sequence[RecipeComparison]) -> str:
    """A comparison as JSON."""
    results = [
        {
            "id": c.kernel.id,
            "op": c.kernel.op,
            "class": c.kernel.bug_class if isinstance(c.kernel, Entry) else None,
            "caught_by": [name for name, caught in c.rejections.items() if caught],
        }
        for c in done
    ]
    return json.dumps({"version": 1, "packproof": __version__, "results": results}, indent=1) + "\n"
