"""What only a GPU shows fails on a wrong kernel there, and a kernel that loses its device is convicted in one run."""

from pathlib import Path

import pytest
import torch

from packproof.harness.engine.check import run_check
from packproof.harness.engine.evaluate import broken
from packproof.harness.engine.plan import CheckRequest
from packproof.harness.results.events import CellFinished
from packproof.harness.worker.worker import Worker
from packproof.properties.call import Refused
from packproof.properties.cases import Space, golden_cases, suited
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.ops import CAUSAL_CONV1D
from packproof.properties.promises import Promises
from packproof.properties.violation import Violation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HERE = Path(__file__).parent
PARAMETERS = frozenset({"x", "weight", "cu_seqlens"})
CAPTURABLE = Promises(capturable=True)


def judge(name: str, target: str, promises: Promises, *, gradients: bool) -> list[Violation | None]:
    """What the property says of each of its cases; those that do not fit the machine are left out."""
    space = Space(CAUSAL_CONV1D, "float32", promises, PARAMETERS, on_gpu=True)
    found: list[Violation | None] = []
    with Worker(str(HERE / target), "cuda", time_limit=120) as worker:
        subject = KernelUnderTest(CAUSAL_CONV1D, worker, promises, gradients=gradients)
        for case in suited(name, space, list(golden_cases(space))):
            try:
                found.append(broken(subject, name, case))
            except Refused:
                continue
    return found


@pytest.mark.parametrize(
    ("target", "note"),
    [
        ("offsets_of_32_bits", "with rows of x beyond 2^31 elements"),
        ("rows_on_the_second_axis", "more than 65,535 sequences"),
    ],
)
def test_sizes(target: str, note: str) -> None:
    found = judge("size", f"wrong_on_gpu.py:{target}", Promises(), gradients=False)
    assert any(violation is not None and note in violation.note for violation in found)


def test_sizes_of_a_right_kernel() -> None:
    found = judge("size", "wrong_on_gpu.py:right", Promises(), gradients=False)
    assert found
    assert not any(found)


def test_a_sum_by_atomics_has_other_bits_when_thousands_of_tokens_add_to_it() -> None:
    promises = Promises(deterministic=True)
    *_, crowd = judge("determinism", "wrong_on_gpu.py:weight_gradient_by_atomics", promises, gradients=True)
    assert crowd is not None
    assert crowd.tensor == "gradient of weight"
    assert not any(judge("determinism", "wrong_on_gpu.py:right", promises, gradients=True))


@pytest.mark.parametrize(
    ("target", "note"), [("torch_graph", "replayed from a CUDA graph"), ("torch_side_stream", "on a side stream")]
)
def test_torch(target: str, note: str) -> None:
    found = judge("torch", f"wrong.py:{target}", CAPTURABLE, gradients=True)
    assert any(violation is not None and note in violation.note for violation in found)


def test_what_waits_for_the_gpu_is_accused_only_where_it_promises_not_to() -> None:
    assert not any(judge("torch", "wrong.py:waits", Promises(), gradients=True))
    assert any(judge("torch", "wrong.py:waits", CAPTURABLE, gradients=True))


def test_a_right_kernel_is_captured() -> None:
    assert not any(judge("torch", "wrong.py:capturable", CAPTURABLE, gradients=True))


def test_an_illegal_access_is_convicted_made_small_and_the_other_properties_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = CheckRequest(
        target=f"{HERE / 'wrong_on_gpu.py'}:illegal_on_three_tokens",
        op="causal_conv1d",
        device="cuda",
        dtypes=("float32",),
        properties=("reference", "packing", "causality", "determinism", "memory", "strides"),
        profile="quick",
    )
    verdicts = {e.verdict.cell.property: e.verdict for e in run_check(request) if isinstance(e, CellFinished)}
    failure = verdicts["reference"].failure
    assert failure is not None
    assert 3 in failure.lengths  # alone, unless new processes took all of the time there is to make it small
    assert failure.tried > 1
    assert "CUDA error: an illegal memory access" in "\n".join(failure.lines)
    assert len(verdicts) == len(request.properties or ())
    assert all(verdict.examples > 0 for verdict in verdicts.values())
