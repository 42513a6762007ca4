"""Many small submissions of a convolution of two tokens, no two alike, each with the verdict that it has to get."""

import json
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

CONTRACT = "conv.json"
TERMS = {
    "op": "causal_conv1d",
    "domain": ["d == 2", "w == 2", "length > 0", "length <= 8"],
    "dtypes": ["fp32"],
    "gradients": False,
    "profile": "quick",
}
RIGHT = """import torch


def conv(x, weight, *, cu_seqlens):
    is_first = torch.zeros(len(x) + 1, dtype=torch.bool)
    is_first[cu_seqlens.long()] = True
    before = torch.where(is_first[: len(x), None], 0, x.roll(1, 0))
    inside = torch.arange(len(x)) < cu_seqlens[-1]
    return torch.where(inside[:, None], weight[:, 1] * x + weight[:, 0] * before, 0)
"""
SOURCES: Mapping[str, tuple[str, str]] = {
    "right": ("passed", RIGHT),
    "leaky": ("failed", RIGHT.replace("torch.where(is_first[: len(x), None], 0, x.roll(1, 0))", "x.roll(1, 0)")),
    "raising": ("failed", "def conv(x, weight, *, cu_seqlens):\n    raise RuntimeError('not written yet')\n"),
    "empty": ("failed", "def conv(x, weight, *, cu_seqlens):\n    return None\n"),
    "missing": ("failed", "import a_module_of_no_one\n"),
    "uncallable": ("failed", "conv = 1\n"),
}
"""By kind: the verdict, and the source."""
_QUICK = ("missing", "uncallable")  # no call of theirs is checked
_TURNS = ("right", *_QUICK, "leaky", *_QUICK, "raising", *_QUICK, "empty")


def write_samples(folder: Path, count: int) -> dict[str, str]:
    """Write submissions, their contract and `list.jsonl` to a folder. Returns the verdict of each, by name."""
    (folder / "submissions").mkdir(parents=True, exist_ok=True)
    (folder / CONTRACT).write_text(json.dumps(TERMS))
    verdicts, lines = {}, []
    for number, kind in zip(range(count), cycle(_TURNS), strict=False):
        name, (verdict, source) = f"{number:04}-{kind}", SOURCES[kind]
        (folder / f"submissions/{name}.py").write_text(f"# submission {number}\n{source}")

        lines.append(json.dumps({"submission": f"submissions/{name}.py:conv", "name": name, "contract": CONTRACT}))
        verdicts[name] = verdict
    (folder / "list.jsonl").write_text("\n".join(lines) + "\n")
    return verdicts
