"""Writes docs/properties.md: the laws from the catalogue, the pictures from the packs below, the bugs from the museum.

python docs/properties.py
"""

import textwrap
from dataclasses import dataclass
from pathlib import Path

from packproof.museum import entries
from packproof.properties.catalogue import PROPERTIES

PAGE = Path(__file__).with_name("properties.md")
PACK = "aaa bbbbb cc"
SHOWN = 3

HEAD = """# Properties

Each is written once and holds for every op, because it reads the op's declaration: which axis is tokens, which is
sequences, what is shared. It is checked for outputs and for every gradient. Below, `f` is the kernel, `S` a pack of
sequences, `S[j]` one of them, `θ` what is shared (weights), `f′` any gradient: of a token's input, or of `θ`.

*Equal* means: the same bits where the kernel [promises](../README.md#properties) it, else within the budget that is
derived for each element ([why not a norm](why_norms_lie.md)):

    |out − r| ≤ u_out|r| + η_out + K_op·u_op·B + K_acc·u_acc·(B + B_E)

In the pictures a letter is a token of a sequence, `|` a boundary, `?` another value, `.` what lies between rows; `=`
marks what has to be equal. The bugs are entries of the [museum](museum.md) that the property convicts: `packproof
museum show S4` shows one. This page is written by `docs/properties.py`.
"""


@dataclass(frozen=True)
class Law:
    """formula: what must hold. first, second: two runs, each a name and its pack. blind: what it cannot see.
    note: a rule and its reason.
    """

    formula: str
    first: tuple[str, str]
    second: tuple[str, str]
    blind: str
    note: str = ""


LAWS = {
    "reference": Law(
        "|f(S) − r(S)| ≤ budget,   |f′(S) − r′(S)| ≤ budget,   r: the same mathematics in float64, token by token",
        ("kernel", PACK),
        ("reference", PACK),
        "a fault that the reference shares; therefore it shares no code with the kernel",
    ),
    "packing": Law(
        "f(S)[j] = f([S[j]]),   f′(S)[j] = f′([S[j]]),   ∂θ f(S) = Σⱼ ∂θ f([S[j]])",
        ("the pack", PACK),
        ("one alone", "bbbbb"),
        "what is wrong alone too",
    ),
    "isolation": Law(
        "f(S)[j] = f(S′)[j]   for every S′ with S′[j] = S[j], whatever the others and the slack hold",
        ("the pack", PACK),
        ("others redrawn", "??? bbbbb ??"),
        "how long the others are: the layout stays",
        "Slack rows hold NaN here for every kernel, whatever it promises: they are uninitialised memory in practice, "
        "and hold NaN sooner or later. A kernel that takes no slack says `slack=False`. In the sequences NaN, Inf and "
        "huge values are drawn where the kernel promises `isolated`; of others it is asked and reported, and does not "
        "count.",
    ),
    "causality": Law(
        "y[≤ i] does not change with x[> i],   x′[> i] does not change with y′[≤ i]",
        ("the pack", PACK),
        ("later redrawn", "aa? bbb?? c?"),
        "non-causal ops, for which it does not apply",
    ),
    "permutation": Law(
        "f(πS) = πf(S),   ∂θ f(πS) = ∂θ f(S)   for every order π of the sequences",
        ("the pack", PACK),
        ("reordered", "cc aaa bbbbb"),
        "what is wrong in every order",
    ),
    "carry": Law(
        "f(S) = f(S[:i]) ‖ f(S[i:], h),   h: the final state of the first piece; gradients flow back through h",
        ("one run", PACK),
        ("in pieces", "aa bbb c a bb c"),
        "ops and kernels without a state",
    ),
    "determinism": Law(
        "f(S) = f(S)   again, after other shapes, in a new process, with cu_seqlens edited in place",
        ("a call", PACK),
        ("the same call", PACK),
        "what is wrong every time",
    ),
    "memory": Law(
        "S is the same after f(S);   f(S) = f(S) with all new memory NaN;   canaries around it stay",
        ("a call", PACK),
        ("in NaN memory", f"# {PACK} #"),
        "values that are wrong and written",
    ),
    "strides": Law(
        "f(S) = f(S transposed, sliced or expanded),   or an error that speaks of strides",
        ("contiguous", PACK),
        ("sliced", "a.a.a. b.b.b.b.b. c.c."),
        "what is wrong when contiguous",
    ),
    "metadata": Law(
        "f(S) = f(S with int64 offsets) = f(S with empty sequences put in);   f of nothing is nothing",
        ("the pack", PACK),
        ("empty ones put in", " aaa  bbbbb  cc "),
        "offsets that no call may have",
    ),
    "torch": Law(
        "f(S) = compiled f(S) = f(S) from a CUDA graph = f(S) on a side stream;   f″ is right or an error",
        ("eager", PACK),
        ("compiled", PACK),
        "what is wrong in eager mode too",
    ),
    "size": Law(
        "f(S)[j] does not change behind 2³¹ and 2³² elements or 65,535 sequences",
        ("the pack", PACK),
        ("far away", f"?..? {PACK}"),
        "machines without the memory, where it says so",
    ),
}


def picture(law: Law) -> str:
    """Both runs, and below the second one a mark at each of its tokens that the first one has too."""
    shared = _tokens(law.first[1]) & _tokens(law.second[1])
    width = max(len(law.first[0]), len(law.second[0]), len("equal")) + 2
    rows = [f"{name:<{width}}|{pack.replace(' ', '|')}|" for name, pack in (law.first, law.second)]
    marks = "".join("=" if token in shared else " " for token in _numbered(law.second[1]))
    return "\n".join(f"    {row}".rstrip() for row in [*rows, f"{'equal':<{width}} {marks}"])


def _numbered(pack: str) -> list[tuple[str, int]]:
    """Each character of a pack with its number among its like."""
    return [(letter, pack[:i].count(letter)) for i, letter in enumerate(pack)]


def _tokens(pack: str) -> set[tuple[str, int]]:
    return {token for token in _numbered(pack) if token[0].isalpha()}


def convicted(name: str) -> list[str]:
    """Some bugs of the museum that the property convicts, those first of which it is the best judge."""
    found = [entry for entry in entries().values() if name in entry.properties]
    found.sort(key=lambda entry: (entry.properties.index(name), not entry.links))
    where = {bug.id: f" ([found]({bug.links[0]}))" if bug.links else "" for bug in found}
    return [f"- `{bug.id}` {bug.op}: {bug.title}{where[bug.id]}" for bug in found[:SHOWN]]


def section(name: str) -> str:
    law, said = LAWS[name], (PROPERTIES[name].__doc__ or "").partition("\n")[0]
    bugs = "\n".join(convicted(name)) or "- nothing in the museum yet"
    drawn = f"```text\n{picture(law)}\n```"
    parts = (f"## {name}", said, f"    {law.formula}", drawn, "Convicts, for one:", bugs, f"Does not see {law.blind}.")
    parts += (textwrap.fill(law.note, 120),) if law.note else ()
    return "\n\n".join(parts) + "\n"


def page() -> str:
    return "\n".join([HEAD, *map(section, PROPERTIES)])


if __name__ == "__main__":
    PAGE.write_text(page())
