"""Ranks that a kernel simulates share no memory, whenever it imports them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from packproof.harness.process.worker import Worker
from packproof.properties.calling.call import Call

KERNEL = """
import torch
AT_IMPORT
seen_ranks = []

def kernel(x, weight, *, cu_seqlens):
    from packproof.parallel import run_ranks

    def program(group):
        seen_ranks.append(group.rank())
        return torch.tensor(float(len(seen_ranks)))

    first, second = run_ranks(2, program)
    return x * weight + (second - first)
"""


@pytest.mark.parametrize("at_import", ["from packproof.parallel import run_ranks", ""])
def test_ranks_have_processes_of_their_own(make_call: Callable[..., Call], tmp_path: Path, at_import: str) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.replace("AT_IMPORT", at_import))
    call = make_call(2, wrt=(), cotangents={})
    with Worker(f"{tmp_path / 'kernel.py'}:kernel") as worker:
        y = worker.run(call).outputs["y"]
    assert torch.equal(y, call.inputs["x"] * call.inputs["weight"])
