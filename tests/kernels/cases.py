"""What the tests of kernels in the interpreter share: layouts, tensors, calls under the sanitizer, comparisons."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.interpreter import repair
from packproof.interpreter.batch.launch import BatchingSanitizer

repair.install()

LAYOUTS: tuple[list[int], ...] = ([1], [33, 31, 0, 2], [0, 3, 0, 0, 1, 0], [1] * 9 + [2] * 9, [0, 0], [])


ABOUT_THE_OP = ("test_passes_opcheck", "test_compiles_in_one_graph", "test_refuses_wrong_arguments")
"""Tests that do not depend on which kernels compute the op."""


def borrowed_tests(
    module: ModuleType, *, except_for: Sequence[str], proofs: Sequence[str] = ()
) -> dict[str, Callable[..., None]]:
    """The tests of a module, to be run in another module.

    proofs: those that only `make proof` runs there: g++ compiles each form for half a second.
    """
    tests = {name: x for name, x in vars(module).items() if name.startswith("test_") and name not in except_for}
    return {name: _as_proof(test) if name in proofs else test for name, test in tests.items()}


def _as_proof(test: Any) -> Any:
    """A copy of a test: a mark on the test itself would be there in its own module, too."""
    copy = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    copy.__dict__.update(test.__dict__)
    return pytest.mark.proof(copy)


def offsets(lengths: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def scattered(tensor: Tensor) -> Tensor:
    """The same values with no dense axis: every other element of a buffer of NaN."""
    buffer = torch.full((*tensor.shape, 2), float("nan"), dtype=tensor.dtype)
    buffer[..., 0] = tensor
    return buffer[..., 0]


def vjp(
    function: Callable[..., Any], inputs: Mapping[str, Tensor], cotangents: Sequence[Tensor], **options: Any
) -> dict[str, Tensor]:
    """Outputs by number and gradients by the name of their input, under the sanitizer.

    The programs of a launch run together. interpreted_batch_kernels.py holds them to the bits of reverse order.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in inputs.items()}
    with BatchingSanitizer(leaves.values()):
        returned = function(**leaves, **options)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        reached = [(y, dy) for y, dy in zip(outputs, cotangents, strict=False) if y.requires_grad]
        ys, dys = zip(*reached, strict=True) if reached else ((), ())
        gradients = (
            torch.autograd.grad(ys, tuple(leaves.values()), dys, allow_unused=True) if ys else [None] * len(leaves)
        )
    found = {str(i): y.detach() for i, y in enumerate(outputs)}
    return found | {
        k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), gradients, strict=True)
    }


def same_bits(got: Tensor, wanted: Tensor, what: str) -> None:
    assert torch.equal(got, wanted), f"{what}: {got.tolist()} but {wanted.tolist()}"


def close(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float, where: str) -> None:
    """Equal names, shapes, and values up to a tolerance relative to the largest."""
    for name in wanted:
        assert got[name].shape == wanted[name].shape, f"{name} {where}"
        if wanted[name].numel():
            error = (got[name].double() - wanted[name]).abs().max() / (1 + wanted[name].abs().max())
            assert error <= tolerance, f"{name} {where}: off by {error:.1e}"
