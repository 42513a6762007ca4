"""What only a GPU shows fails on an incorrect kernel there, and a kernel that loses its device fails in one run."""

from pathlib import Path

import pytest
import torch

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.process.worker import Worker
from packproof.harness.report.events import CellFinished
from packproof.properties.calling.call import Refusal
from packproof.properties.calling.tensor_key import gradient
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.call_contract import DETERMINISM
from packproof.properties.laws.property import Property
from packproof.properties.laws.second_derivative import DOUBLE_BACKWARD
from packproof.properties.laws.size import SIZE
from packproof.properties.laws.torch_integration import CUDA_GRAPH, OPCHECK, SIDE_STREAM, TORCH_COMPILE
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import CAUSAL_CONV1D

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HERE = Path(__file__).parent
PARAMETERS = frozenset({"x", "weight", "cu_seqlens"})
CAPTURABLE = Promises(capturable=True)


def judge(law: Property, target: str, promises: Promises, *, gradients: bool) -> list[Violation | None]:
    """What the property finds at each of its cases; those that do not fit the machine are left out."""
    states = target.startswith("sizes_on_gpu") and not target.endswith("without_states")
    parameters = PARAMETERS | ({"initial_states"} if states else set())
    space = Space(CAUSAL_CONV1D, "float32", promises, parameters, on_gpu=True)
    found: list[Violation | None] = []
    with Worker(str(HERE / target), "cuda", time_limit=120) as worker:
        kernel = KernelUnderTest(CAUSAL_CONV1D, worker, promises, gradients=gradients)
        for case in law.suited(space, list(golden_cases(space))):
            try:
                found.append(first_violation(kernel, law, case))
            except Refusal:
                continue
    return found


@pytest.mark.parametrize(
    ("target", "note"),
    [
        ("wrong_on_gpu.py:offsets_of_32_bits", "with rows of x beyond 2^31 elements"),
        ("wrong_on_gpu.py:rows_on_the_second_axis", "65,535 chunks of 256 tokens"),
        ("sizes_on_gpu.py:chunks_on_the_second_axis", "65,535 chunks of 256 tokens"),
        ("sizes_on_gpu.py:chunks_on_the_third_axis", "65,535 chunks of 256 tokens"),
        ("sizes_on_gpu.py:offsets_in_int32", "elements"),
        ("sizes_on_gpu.py:offsets_in_uint32", "past 2^32 elements"),
        ("sizes_on_gpu.py:offsets_in_bytes", "elements"),
        ("sizes_on_gpu.py:sequences_in_int16", "131,071 sequences"),
        ("sizes_on_gpu.py:sequences_in_int16_without_states", "copy"),
        ("sizes_on_gpu.py:sequences_in_uint16", "131,071 sequences"),
        ("sizes_on_gpu.py:sequences_in_17_bits", "131,071 sequences"),
    ],
)
def test_sizes(target: str, note: str) -> None:
    found = judge(SIZE, target, Promises(), gradients=False)
    assert any(violation is not None and note in violation.note for violation in found), found


@pytest.mark.parametrize("file", ["wrong_on_gpu.py", "sizes_on_gpu.py"])
def test_sizes_of_a_correct_kernel(file: str) -> None:
    found = judge(SIZE, f"{file}:right", Promises(), gradients=False)
    assert found
    assert not any(found)


@pytest.mark.usefixtures("working_folder")
def test_a_kernel_that_goes_wrong_past_2_31_elements_is_a_failure_with_its_case() -> None:
    request = CheckRequest(
        target=f"{HERE / 'sizes_on_gpu.py'}:offsets_in_int32",
        op="causal_conv1d",
        device="cuda",
        dtypes=("float32",),
        properties=("size",),
        forward_only=True,
        questions=False,
    )
    [verdict] = [e.verdict for e in run_check(request) if isinstance(e, CellFinished)]
    assert verdict.status == "failed", verdict.reason
    assert verdict.failure is not None
    assert "packproof itself failed" not in "\n".join(verdict.failure.lines)


def test_a_sum_by_atomics_has_other_bits_when_thousands_of_tokens_add_to_it() -> None:
    promises = Promises(deterministic=True)
    *_, crowd = judge(DETERMINISM, "wrong_on_gpu.py:weight_gradient_by_atomics", promises, gradients=True)
    assert crowd is not None
    assert crowd.tensor == gradient("weight")
    assert not any(judge(DETERMINISM, "wrong_on_gpu.py:right", promises, gradients=True))


@pytest.mark.parametrize(
    ("law", "note"), [(CUDA_GRAPH, "replayed from a CUDA graph"), (SIDE_STREAM, "on a side stream")]
)
def test_graphs_and_streams(law: Property, note: str) -> None:
    found = judge(law, f"wrong.py:{law.name}", CAPTURABLE, gradients=True)
    assert any(violation is not None and note in violation.note for violation in found)


def test_a_kernel_that_waits_for_the_gpu_fails_only_where_it_promises_not_to() -> None:
    assert judge(CUDA_GRAPH, "wrong.py:waits", Promises(), gradients=True) == []
    assert any(judge(CUDA_GRAPH, "wrong.py:waits", CAPTURABLE, gradients=True))


@pytest.mark.parametrize("law", [OPCHECK, TORCH_COMPILE, SIDE_STREAM, CUDA_GRAPH, DOUBLE_BACKWARD])
def test_a_correct_kernel_passes_what_torch_needs(law: Property) -> None:
    found = judge(law, "wrong.py:capturable", CAPTURABLE, gradients=True)
    assert found
    assert not any(found)


@pytest.mark.usefixtures("working_folder")
def test_an_illegal_access_is_detected_made_small_and_the_other_properties_are_judged() -> None:
    request = CheckRequest(
        target=f"{HERE / 'wrong_on_gpu.py'}:illegal_on_three_tokens",
        op="causal_conv1d",
        device="cuda",
        dtypes=("float32",),
        properties=("reference", "packing", "causality", "determinism", "memory", "strides"),
        profile="quick",
        questions=False,
    )
    verdicts = {e.verdict.cell.property: e.verdict for e in run_check(request) if isinstance(e, CellFinished)}
    failure = verdicts["reference"].failure
    assert failure is not None
    assert 3 in failure.lengths  # alone, unless new processes took all of the time there is to make it small
    assert failure.cases_tried > 1
    assert "CUDA error: an illegal memory access" in "\n".join(failure.lines)
    assert len(verdicts) == len(request.properties or ())
    assert all(verdict.examples > 0 for verdict in verdicts.values())
