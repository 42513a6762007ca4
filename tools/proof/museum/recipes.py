"""The recipes of public test suites for packed kernels, applied to the bugs of the museum.

All run on fixed layouts, as in such suites, scaled to chunks of 16: one sequence, equal lengths, lengths
near a maximum as in flash-attention, the offsets [0, 256, 500, 1000] and [0, 15, 100, 300, 1200, 2000] of
flash-linear-attention. No slack, contiguous tensors, normal values; once with every option and once with none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import KernelFault
from packproof.base.machine import available_cores
from packproof.harness.process import Worker, run_on_every_core
from packproof.harness.process.execution import InProcess
from packproof.museum import Control, Entry
from packproof.proof.museum.detect import SHORT_LIMITS, detect
from packproof.properties.bounds import vjp
from packproof.properties.calling import Refusal, TensorKey, gradient
from packproof.properties.cases import Case, Space, draw
from packproof.properties.declarations import Promises, parse_declaration
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.ops import OPS

LAYOUTS = ((15,), (128,), (64, 64, 64, 64), (61, 44, 57, 52), (32, 30, 62), (2, 11, 25, 112, 100))
PACKPROOF = "packproof"
Tensors = Mapping[TensorKey, Tensor]
IsBroken = Callable[[Tensors, Tensors, Tensors], bool]


def fails_assert_close(actual: Tensors, reference: Tensors, _: Tensors) -> bool:
    """torch.testing.assert_close with its defaults fails for a tensor."""
    with suppress(AssertionError):
        for name, x in actual.items():
            torch.testing.assert_close(x, reference[name].to(x.dtype))
        return False
    return True


def fails_rms(actual: Tensors, reference: Tensors, _: Tensors) -> bool:
    """The RMS of the error of a tensor is above 0.005 of the RMS of its values, and the largest error above 1e-6."""
    for name, x in actual.items():
        error, r = x.double() - reference[name], reference[name]
        if x.numel() and not (error.abs().max() <= 1e-6 or error.norm() <= 0.005 * r.norm()):
            return True
    return False


def fails_twice_low_precision(actual: Tensors, reference: Tensors, low_reference: Tensors) -> bool:
    """The largest error of a tensor is above 1e-5 plus twice the largest of the reference in low precision."""
    for name, x in actual.items():
        allowed = (
            2 * (low_reference[name].double() - reference[name]).abs()
            if name in low_reference
            else torch.zeros_like(reference[name])
        )
        if x.numel() and not (x.double() - reference[name]).abs().max() <= allowed.max() + 1e-5:
            return True
    return False


@dataclass(frozen=True)
class Recipe:
    """One way to compare a kernel with its reference."""

    is_broken: IsBroken
    """Whether the values show an incorrect kernel: of the kernel, the float64 reference and the low-precision one."""
    gradients: bool = True
    """Whether gradients are compared too."""
    low_precision: bool = False
    """Whether it runs in bfloat16 instead of the entry's dtype."""


RECIPES: Mapping[str, Recipe] = {
    "assert_close, forward": Recipe(fails_assert_close, gradients=False),
    "assert_close": Recipe(fails_assert_close),
    "RMS 0.005": Recipe(fails_rms),
    "2 x low precision": Recipe(fails_twice_low_precision, low_precision=True),
}


@dataclass(frozen=True)
class RecipeComparison:
    """The verdicts of all recipes on one kernel."""

    kernel: Entry | Control
    rejections: Mapping[str, bool]
    """Whether a recipe rejects the kernel, by its name; for an entry also PACKPROOF."""


def compare(kernels: Sequence[Control]) -> Iterator[RecipeComparison]:
    """Every recipe on each kernel, and the properties on each entry; on a CPU, on every core."""
    cores = available_cores()
    ops = dict.fromkeys(kernel.op for kernel in kernels)
    groups = [[kernel for kernel in kernels if kernel.op == op][part::cores] for op in ops for part in range(cores)]
    yield from run_on_every_core([partial(_unit, group) for group in groups], "cpu", record_type=RecipeComparison)


def _unit(kernels: Sequence[Control]) -> Iterator[RecipeComparison]:
    """Kernels of one op: they share the values of the reference."""
    for kernel in kernels:
        rejections = recipe_rejections(kernel)
        if isinstance(kernel, Entry):
            rejections = {PACKPROOF: bool(detect(kernel, profile="standard", device="cpu").detected_by), **rejections}
        yield RecipeComparison(kernel, rejections)


def recipe_rejections(kernel: Control) -> dict[str, bool]:
    """Whether each recipe rejects the kernel: for an incorrect value, or an exception, on any layout."""
    rejections = dict.fromkeys(RECIPES, False)
    dtype = kernel.dtype if isinstance(kernel, Entry) else "float32"
    for low_precision in (False, True):
        with Worker(kernel.kernel, "cpu", SHORT_LIMITS["cpu"]) as worker:
            parameters = parse_declaration(worker.describe(), kernel.kernel).parameters
            space = Space(OPS[kernel.op], "bfloat16" if low_precision else dtype, Promises(), parameters)
            subject = KernelUnderTest(space.op, worker, space.promises)
            for case in _cases(space):
                pending = [n for n, r in RECIPES.items() if r.low_precision == low_precision and not rejections[n]]
                rejections |= {name: True for name in pending if _rejects(RECIPES[name], subject, case)}
    return rejections


def _cases(space: Space) -> Iterator[Case]:
    for lengths in LAYOUTS:
        for with_options, size in zip((True, False), space.op.sizes, strict=False):
            yield Case(
                lengths,
                space.dtype,
                tuple(size.items()),
                present=tuple(space.optional_inputs) if with_options else (),
                axes=tuple((name, 0) for name in space.form_counts),
                options=space.known_options({n: v[-1 if with_options else 0] for n, v in space.options.items()}),
            )


def _rejects(recipe: Recipe, subject: KernelUnderTest, case: Case) -> bool:
    try:
        actual = subject.cached_run(subject.sample(case))
    except KernelFault:
        return True
    except Refusal:
        return False
    reference, low_reference = _reference(subject.op.name, case)
    compared = {n: x for n, x in actual.items() if recipe.gradients or not n.is_gradient}
    return recipe.is_broken(compared, reference, low_reference)


@cache
def _reference(op: str, case: Case) -> tuple[Tensors, Tensors]:
    """The reference's values in float64, and in the case's dtype."""
    sample = draw(OPS[op], case)
    result: Any = InProcess(OPS[op].reference).run(sample.call())
    low_reference = {
        **{TensorKey(n): y for n, y in result.outputs.items()},
        **{gradient(n): g for n, g in result.gradients.items()},
    }
    return vjp(OPS[op].reference, sample, gradients=True), low_reference
