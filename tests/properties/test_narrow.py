"""Parameters of 16 bits where an op has them in fp32: values and gradients, and a kernel that gets them wrong."""

import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError, UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import check_signature, describe_kernel, kernel, parse_declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import CAUSAL_CONV1D, OPS, SELECTIVE_SCAN, SSD
from packproof.properties.ops.op import Op
from tests.sweeps import sweep

BIASES = {"selective_scan": "delta_bias", "ssd": "dt_bias"}
PLAIN = Promises(compute="fp32")


def spaced(op: Op, dtype: str) -> Space:
    return Space(op, dtype, PLAIN, max_tokens=60, narrow=tuple(sorted(op.narrow)))


def narrow_cases(op: Op, dtype: str) -> list[Case]:
    return [case for case in golden_cases(spaced(op, dtype)) if case.narrow and case.n_tokens <= 60]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", [SELECTIVE_SCAN, SSD])
def test_the_reference_passes(op: Op, dtype: str) -> None:
    under_test = KernelUnderTest(op, InProcess(op.reference), PLAIN)
    cases = narrow_cases(op, dtype)[:6]
    assert len(cases) == 6
    for law in ("reference", "packing"):
        for case in cases:
            violation = first_violation(under_test, PROPERTIES[law], case)
            assert violation is None, violation.lines()


@pytest.mark.parametrize("token", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [SELECTIVE_SCAN, SSD])
def test_a_gradient_has_the_dtype_of_its_parameter_rounded_once(op: Op, token: torch.dtype) -> None:
    """The bits of the gradient of the same parameters in fp32, rounded; summed in 16 bits they would be others."""
    case = Case((7, 0, 30), "float32", tuple(op.sizes[0].items()), present=("D", BIASES[op.name]))
    sample, low = draw(op, case), torch.bfloat16 if token == torch.float32 else token
    cotangent = sample.cotangents["y"].to(token)

    def gradients(wide: bool) -> dict[str, Tensor]:
        given = {}
        for name, x in sample.inputs.items():
            rounded = x.to(low) if name in op.narrow else x.to(token)
            given[name] = (rounded.float() if wide and name in op.narrow else rounded).requires_grad_()
        y = op.reference(**given, cu_seqlens=sample.cu_seqlens)
        return dict(zip(given, torch.autograd.grad(y, list(given.values()), cotangent), strict=True))

    found, wide = gradients(wide=False), gradients(wide=True)
    for name, gradient in found.items():
        assert gradient.dtype == (low if name in op.narrow else token), name
        assert gradient.equal(wide[name].to(gradient.dtype)), name


def sequence_by_sequence(op: Op, *, cu_seqlens: Tensor, **given: Any) -> Any:
    """Each sequence in a call of its own: gradients of parameters are rounded in each and summed as they are stored."""
    found = []
    for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        rows = {"t": slice(start, end), "s": slice(j, j + 1)}
        own = {n: x[rows[op.inputs[n][0]]] if op.inputs.get(n, "-")[0] in rows else x for n, x in given.items()}
        found.append(op.reference(**own, cu_seqlens=torch.tensor([0, end - start])))
    ys, finals = zip(*found, strict=True) if given.get("return_final_states") else (found, ())
    first = given[next(iter(op.inputs))]
    y = torch.cat([*ys, torch.zeros_like(first[int(cu_seqlens[-1]) :])])
    return (y, torch.cat(finals)) if finals else y


@sweep("op", [SELECTIVE_SCAN], [SSD])
def test_gradients_that_are_summed_in_16_bits_are_detected(op: Op) -> None:
    under_test = KernelUnderTest(op, InProcess(partial(sequence_by_sequence, op)), PLAIN)
    cases = [case for case in golden_cases(spaced(op, "bfloat16")) if len(case.lengths) > 1 and case.n_tokens <= 60]
    found = [first_violation(under_test, PROPERTIES["reference"], case) for case in cases if case.narrow]
    wrong = {str(violation.tensor) for violation in found if violation}
    assert wrong
    assert wrong <= {f"gradient of {name}" for name in op.narrow}
    wide = [first_violation(under_test, PROPERTIES["reference"], case) for case in cases if not case.narrow]
    assert wide == [None] * len(wide), "in fp32 it is correct"


def test_a_kernel_that_declares_nothing_gets_fp32_and_so_does_any_beside_fp16() -> None:
    assert not any(case.narrow for case in golden_cases(Space(SSD, "bfloat16", PLAIN)))
    assert not any(case.narrow for dtype in ("float64", "float16") for case in golden_cases(spaced(SSD, dtype)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_cases_have_none_or_all_in_16_bits(dtype: str) -> None:
    drawn = [case for case in golden_cases(spaced(SSD, dtype)) if case.present]
    assert {case.narrow for case in drawn} >= {(), ("A", "D", "dt_bias")}
    case = next(case for case in drawn if case.narrow)
    low = torch.bfloat16 if dtype == "float32" else getattr(torch, dtype)
    assert {x.dtype for name, x in draw(SSD, case).inputs.items() if name in case.narrow} == {low}
    assert "A, D, dt_bias in 16 bits" in str(case)
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    assert "narrow" not in case.replace(narrow=()).to_json()
    assert case.without("D").narrow == ("A", "dt_bias")


def test_another_dtype_is_refused_with_those_that_there_are() -> None:
    x, A, B = torch.ones(4, 1, 2).bfloat16(), -torch.ones(1), torch.ones(4, 1, 3).bfloat16()
    cu_seqlens = torch.tensor([0, 4])
    with pytest.raises(ArgumentError, match="ssd: A is float16 but float32 or bfloat16 was expected with bfloat16 x"):
        refs.ssd(x, x[..., 0], A.half(), B, B, cu_seqlens=cu_seqlens)
    with pytest.raises(ArgumentError, match="ssd: A is bfloat16 but float64 was expected with float64 x"):
        refs.ssd(x.double(), x[..., 0].double(), A.bfloat16(), B.double(), B.double(), cu_seqlens=cu_seqlens)
    refs.ssd(x, x[..., 0], A.bfloat16(), B, B, cu_seqlens=cu_seqlens)


def test_parts_and_states_of_an_ssd_take_them_too() -> None:
    x, A, B = torch.ones(4, 1, 2), -torch.ones(1).bfloat16() / 3, torch.ones(4, 1, 3)
    cu_seqlens = torch.tensor([0, 4])
    for wide, narrow in (
        [refs.ssd_state(x, x[..., 0], a, B, A, token=3, cu_seqlens=cu_seqlens) for a in (A.float(), A)],
        [refs.ssd_intermediates(x, x[..., 0], a, B, B, A, cu_seqlens=cu_seqlens).passed_states for a in (A.float(), A)],
    ):
        assert narrow.dtype == torch.float32
        assert wide.equal(narrow)


def test_a_declaration_names_inputs_that_the_op_has_so() -> None:
    @kernel(op="causal_conv1d", narrow=["bias"])
    def conv(x, weight, bias=None, *, cu_seqlens):
        return x

    with pytest.raises(UsageError, match="mine: narrow has 'bias'; of causal_conv1d these may be of 16 bits: none"):
        check_signature(CAUSAL_CONV1D, parse_declaration(describe_kernel(conv), "mine"), "mine")
    assert OPS["ssd_update"].narrow == SSD.narrow
