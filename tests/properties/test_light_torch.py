"""A mode of packproof's sees operators, and imports no compiler for that."""

import subprocess
import sys
from typing import Any

import torch

from packproof.properties.light_torch import DispatchMode

ALONE = """
import sys
import torch
from packproof.properties.bounds.running_error import RunningError
x = torch.ones(3)
with RunningError() as running:
    y = x * x
assert running.error(y).min() > 0
sys.exit("torch._dynamo" in sys.modules)
"""


class Seen(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_operators_are_seen_without_importing_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_operators_are_seen_before_and_after_something_was_compiled() -> None:
    x = torch.ones(3)
    with Seen() as seen:
        y = x * x
        compiled = torch.compile(lambda x: x.sin().cos(), backend="eager")(y)
        z = compiled + x
    assert torch.equal(z, x.sin().cos() + x)
    assert (seen.names[0], seen.names[-1]) == ("mul", "add")
    assert {"sin", "cos"} <= set(seen.names)
