"""Rogues that are whole models, checked as a user would: by `packproof model`, in a process of its own."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Literal

from packproof.museum.rogues import Rogue
from packproof.proof.museum.naive_harness import WIDTH

_SECONDS = 5  # for the construction, and for one call
_LIMIT = 120  # for all of it
_CHECK = (
    f"--inputs {WIDTH} --profile quick --convention cu_seqlens --mode eval,train --keep-weights --timeout {_SECONDS}"
)
ModelFate = Literal["passed", "detected", "reported", "lost"]
_FATES: Mapping[int, ModelFate] = {0: "passed", 1: "detected", 2: "reported", 4: "reported"}


def model_fate(rogue: Rogue) -> tuple[ModelFate, str]:
    """The fate of a model, and the output of `packproof model`.

    "reported": no module can be made of it, or nothing shows whether it leaks.
    """
    command = [sys.executable, "-P", "-m", "packproof", "model", rogue.kernel, *_CHECK.split()]
    try:
        end = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return "lost", f"no verdict within {_LIMIT} s"
    return _FATES.get(end.returncode, "lost"), end.stdout + end.stderr
