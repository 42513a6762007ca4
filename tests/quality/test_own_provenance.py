"""packproof's own kernels, and the correct Triton kernel of the museum, make their outputs by their own launches."""

import pytest

from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.harness.process.worker import Worker
from packproof.properties.calling.call import Refusal
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import parse_declaration
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.ops import OPS
from packproof.properties.provenance.law import OWN_KERNELS, PROVENANCE

pytest.importorskip("triton")

_QUICK = ("causal_conv1d", "rope", "hadamard")
_TARGETS = {
    **{name: (kernel.target, kernel.op) for name, kernel in BUILTIN_KERNELS.items() if kernel.runs_on("cpu")},
    "tiles": ("packproof.museum.tiles:correct", "causal_conv1d"),
}
_CASES = 3


def violations(name: str) -> tuple[list[str], KernelUnderTest]:
    """The violations at the first golden cases, as text: of the stricter law too where nothing is summed in torch."""
    target, op = _TARGETS[name]
    with Worker(target, "cpu", 60) as worker:
        declared = parse_declaration(worker.describe(), target)
        kernel = KernelUnderTest(
            OPS[op], worker, declared.promises, gradients=declared.gradients and OPS[op].differentiable
        )
        space = Space(OPS[op], "float32", declared.promises, declared.parameters, domain=declared.domain)
        cases = [case for case in golden_cases(space, 0) if case.n_tokens][:_CASES]
        laws = (PROVENANCE, OWN_KERNELS) if name in _QUICK else (PROVENANCE,)
        texts = []
        for case in cases:
            for law in laws:
                try:
                    violation = first_violation(kernel, law, case)
                except Refusal:
                    continue
                texts += ["; ".join(violation.lines())] if violation else []
        return texts, kernel


@pytest.mark.parametrize(
    "name", [name if name in (*_QUICK, "tiles") else pytest.param(name, marks=pytest.mark.proof) for name in _TARGETS]
)
def test_own_launches_make_the_output(name: str) -> None:
    texts, kernel = violations(name)
    assert texts == []
    assert any(item.kind == "triton" and item.is_own for item in kernel.computed)
    if name != "tiles":  # parts of shared gradients are added in torch, and fp8 is scaled back there
        assert {item.name for item in kernel.computed if not item.is_own} <= {"aten::sum", "aten::mul"}


def test_a_kernel_with_a_backward_pass_by_the_reference_is_named_so() -> None:
    _, kernel = violations("tiles")
    kinds = {(item.kind, item.name.rpartition(".")[2], item.during, item.is_own) for item in kernel.computed}
    assert ("triton", "_conv_fwd_kernel", "forward", True) in kinds
    assert any(kind == "reference" and during == "backward" for kind, _, during, _ in kinds)
