"""Kernels with parameters of 16 bits, which their ops have in fp32; on one rank and on several."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import kernels, parallel
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep

NARROW = ("selective_scan", "ssd")


@sweep("op, dtype", [("selective_scan", "bfloat16"), ("ssd", "float32")], [*product(NARROW, ("bfloat16", "float32"))])
def test_values_and_gradients_are_within_the_budget(op: str, dtype: str) -> None:
    declared = BUILTIN_KERNELS[op].declaration("cpu")
    assert set(declared.narrow) == OPS[op].narrow
    space = Space(OPS[op], dtype, declared.promises, max_tokens=40, narrow=declared.narrow)
    under_test = KernelUnderTest(OPS[op], InProcess(getattr(kernels, op)), declared.promises)
    cases = [case for case in golden_cases(space) if case.narrow and 1 < case.n_tokens <= 30][:2]
    assert cases
    for case in cases:
        violation = first_violation(under_test, PROPERTIES["reference"], case)
        assert violation is None, violation.lines()


@pytest.mark.parametrize("op", NARROW)
def test_on_ranks_they_are_as_on_one(op: str) -> None:
    torch.manual_seed(0)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "selective_scan": {"u": (30, 4), "delta": (30, 4), "A": (4, 3), "B": (30, 3), "C": (30, 3), "D": (4,)},
        "ssd": {"x": (30, 1, 2), "dt": (30, 1), "A": (1,), "B": (30, 1, 3), "C": (30, 1, 3), "D": (1,)},
    }
    narrow, drawn = OPS[op].narrow, {n: torch.rand(shape) for n, shape in shapes[op].items()}
    given = {n: x.bfloat16() if n in narrow else x for n, x in drawn.items()}
    given["A"] = -given["A"]
    dy = torch.randn(shapes[op][next(iter(given))])

    def program(group: Any) -> dict[str, Tensor]:
        shard = parallel.Shard([0, 3, 30], group)
        own = {n: (x if n in narrow else x[shard.rows]).detach().requires_grad_() for n, x in given.items()}
        y = getattr(parallel, op)(**own, shard=shard)
        found = torch.autograd.grad(y, list(own.values()), dy[shard.rows])
        return {"y": y.detach(), **dict(zip(own, found, strict=True))}

    (one,), two = parallel.run_ranks(1, program), parallel.run_ranks(2, program)
    for name, x in one.items():
        parts = torch.stack([found[name] for found in two]) if name in narrow else torch.cat([f[name] for f in two])
        if name not in narrow:
            torch.testing.assert_close(parts, x, rtol=1e-4, atol=1e-4)
            continue
        assert parts.dtype == x.dtype == torch.bfloat16
        rounded = (parts.float().abs().sum(0) + x.float().abs()) * 2**-8  # each once, to 8 bits
        assert ((parts.float().sum(0) - x.float()).abs() <= rounded + 1e-4).all(), name
