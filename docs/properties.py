"""Writes docs/properties.md: laws and pictures from the catalogue, bugs from the museum.

python docs/properties.py
"""

import textwrap
from pathlib import Path

from packproof.museum import entries
from packproof.properties.laws import PROPERTIES, Property
from packproof.properties.laws.property import Illustration

PAGE = Path(__file__).with_name("properties.md")
SHOWN = 3

HEAD = """# Properties

Each is written once and holds for every op, because it reads the op's declaration: which axis is tokens, which is
sequences, what is shared. It is checked for outputs and for every gradient, on layouts that are drawn where packed
kernels break. Below, `f` is the kernel, `S` a pack of sequences, `S[j]` one of them, `θ` what is shared (weights), `f′`
any gradient: of a token's input, or of `θ`.

*Equal* means: the same bits where the kernel [promises](check.md#promises) it, else within the budget that is
derived for each element ([why not a norm](why_norms_lie.md)):

    |out − r| ≤ u_out|r| + η_out + K_op·u_op·B + K_acc·u_acc·(B + B_E)

In the pictures a letter is a token of a sequence, `|` a boundary, `?` another value, `.` what lies between rows; `=`
marks what has to be equal. The bugs are entries of the [museum](quality.md#the-museum) that the property detects:
`packproof museum show S4` shows one. This page is written by `docs/properties.py`.

## A property of your own

It is a `packproof.Property`: a name, a law, and a function of the kernel under test and a case that yields violations.
What it works with is in `packproof.properties`. This one runs a case, runs it again with twice the input, and lets
`agree` compare within the budget of the second run, `my_laws.py`:

```python
from collections.abc import Iterator
from dataclasses import replace

from packproof import Property
from packproof.properties import Case, KernelUnderTest, Origin, Violation


def _homogeneous(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    twice = replace(sample, inputs={**sample.inputs, "x": 2 * sample.inputs["x"]})
    before, after = kernel.run(sample, gradients=False), kernel.run(twice, gradients=False)
    for key, y in after.items():
        yield from kernel.agree(key, y, 2 * before[key], Origin(twice), other="twice", exact=False)


HOMOGENEOUS = Property("homogeneous", "Twice the input gives twice the output.", _homogeneous)
```

`packproof check --property my_laws:HOMOGENEOUS` judges by it; `packproof.check` takes the object as well.
"""


def picture(shown: Illustration) -> str:
    """Both runs, and below the second one a mark at each of its tokens that the first one has too."""
    shared = _tokens(shown.original_run[1]) & _tokens(shown.changed_run[1])
    width = max(len(shown.original_run[0]), len(shown.changed_run[0]), len("equal")) + 2
    rows = [f"{name:<{width}}|{pack.replace(' ', '|')}|" for name, pack in (shown.original_run, shown.changed_run)]
    marks = "".join("=" if token in shared else " " for token in _numbered(shown.changed_run[1]))
    return "\n".join(f"    {row}".rstrip() for row in [*rows, f"{'equal':<{width}} {marks}"])


def _numbered(pack: str) -> list[tuple[str, int]]:
    """Each character of a pack with the number of earlier ones that are the same."""
    return [(letter, pack[:i].count(letter)) for i, letter in enumerate(pack)]


def _tokens(pack: str) -> set[tuple[str, int]]:
    return {token for token in _numbered(pack) if token[0].isalpha()}


def detected(name: str) -> list[str]:
    """Some bugs of the museum that the property detects, those first that it detects at the least cost."""
    found = [entry for entry in entries().values() if name in entry.properties]
    found.sort(key=lambda entry: (entry.properties.index(name), not entry.links))
    where = {bug.id: f" ([found]({bug.links[0]}))" if bug.links else "" for bug in found}
    return [f"- `{bug.id}` {bug.op}: {bug.title}{where[bug.id]}" for bug in found[:SHOWN]]


def section(law: Property) -> str:
    parts = [f"## {law.name}", law.law]
    shown = law.illustration
    if shown:
        parts += [f"    {shown.formula}", f"```text\n{picture(shown)}\n```"]
    if bugs := detected(law.name):
        parts += ["Examples of bugs it catches:", "\n".join(bugs)]
    if shown:
        parts += [f"Misses {shown.misses}.", *([textwrap.fill(shown.note, 120)] if shown.note else [])]
    return "\n\n".join(parts) + "\n"


def page() -> str:
    return "\n".join([HEAD, *map(section, PROPERTIES.values())])


if __name__ == "__main__":
    PAGE.write_text(page())
