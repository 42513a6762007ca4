"""A compilation that takes longer than a call may is no hang: it gets more time, and is inconclusive at worst."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from packproof.base.errors import KernelFault
from packproof.harness.process.worker import Worker
from packproof.harness.report.coverage import Coverage
from packproof.properties.calling.call import Call, FailedCompilation, SlowCompilation
from packproof.properties.cases.case import Case

Make = Callable[..., Call]

# sleeps in a file of a compiler, or in one that runs what it has compiled
COMPILING = """
import pathlib, tempfile
folder = pathlib.Path(tempfile.gettempdir())  # which is the kernel's own
sleeps, source = {{}}, "import time\\ndef sleep(seconds):\\n    time.sleep(seconds)"
exec(compile(source, "/site-packages/{file}", "exec"), sleeps)
def scaled(x, weight, *, cu_seqlens):
    if not (folder / "compiled").exists():
        (folder / "{leaves}").touch()
        sleeps["sleep"](60)
    return x * weight
"""
CASE = Case((2, 3), "float32", (("d", 3), ("w", 4)))


def target(folder: Path, leaves: str = "nothing", file: str = "torch/_inductor/graph.py") -> str:
    """leaves: the file that a call leaves, "compiled" where the next one finds what it has compiled."""
    path = folder / "compiling.py"
    path.write_text(COMPILING.format(leaves=leaves, file=file))
    return f"{path}:scaled"


@pytest.mark.parametrize("file", ["torch/_inductor/graph.py", "flashinfer/jit/core.py"])
def test_it_gets_more_time(make_call: Make, tmp_path: Path, file: str) -> None:
    call = make_call(2, 3)
    with Worker(target(tmp_path, "compiled", file), time_limit=0.5) as worker:
        result = worker.run(call)
    assert torch.equal(result.outputs["y"], call.inputs["x"] * call.inputs["weight"])


@pytest.mark.proof
def test_beyond_that_time_the_call_is_not_judged(make_call: Make, tmp_path: Path) -> None:
    with Worker(target(tmp_path), time_limit=0.5) as worker, pytest.raises(SlowCompilation, match=r"after 2 s$"):
        worker.run(make_call(2, 3))


@pytest.mark.parametrize("file", ["torch/_inductor/output_code.py", "flashinfer/prefill.py"])
def test_what_has_been_compiled_may_hang(make_call: Make, tmp_path: Path, file: str) -> None:
    runs = target(tmp_path, file=file)
    with Worker(runs, time_limit=0.5) as worker, pytest.raises(KernelFault, match=r"no answer within 0\.5 s") as fault:
        worker.run(make_call(2, 3))
    assert fault.value.kind == "hung"


def test_a_cell_in_which_one_case_was_not_compiled_in_time_is_inconclusive() -> None:
    seen = Coverage()
    seen.count_case(CASE, frozenset(), compared=True, refusal=None)
    seen.count_case(CASE, frozenset(), compared=False, refusal=SlowCompilation("it was still compiling after 2 s"))
    assert seen.status == "inconclusive"
    assert list(seen.reasons()) == ["1 of 2 examples not judged in time: it was still compiling after 2 s"]


def test_a_cell_is_judged_without_the_case_that_torch_cannot_compile() -> None:
    seen = Coverage()
    seen.count_case(CASE, frozenset({"a class"}), compared=False, refusal=FailedCompilation("InductorError: SliceView"))
    assert seen.status == "skipped"
    seen.count_case(CASE.with_lengths((5,)), frozenset(), compared=True, refusal=None)
    assert (seen.status, seen.missing) == ("passed", ())
    assert list(seen.reasons()) == [
        "not promised: torch cannot compile it in 1 of 2 examples: InductorError: SliceView"
    ]
