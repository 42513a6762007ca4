"""Values and every gradient of a kernel on your own tensors, in this process, against the float64 reference."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from torch import Tensor

from packproof.base.errors import checked_call
from packproof.base.wording import plural
from packproof.debug.local import LocalRunner
from packproof.debug.own_tensors import Tool, check_seed, run_reference, sample_of_tensors
from packproof.harness.report import CheckFailed
from packproof.properties.calling import VacuousBound
from packproof.properties.declarations import Promises
from packproof.properties.judgement import Comparison, KernelUnderTest
from packproof.properties.ops import Op


@checked_call
def gradcheck(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    *,
    cu_seqlens: Tensor,
    op: str | Op | None = None,
    options: Mapping[str, Any] | None = None,
    cotangents: Mapping[str, Tensor] | None = None,
    promises: Promises | None = None,
    seed: int = 0,
) -> None:
    """Check values and every gradient of a kernel on your tensors, within the error budget of the float64 reference.

    function: the kernel.
    inputs: tensors by the op's argument names, on the device of the kernel; `packproof list` shows their axes.
    cu_seqlens: int32 or int64 (s + 1,) on any device.
    op: name of the op, or an Op. Needed unless the kernel declares one.
    options: the keyword arguments other than tensors.
    cotangents: incoming gradients by output name; drawn from `seed` if missing.
    promises: the kernel's guarantees, which choose the constants of the budget. Default: the declared ones.
    seed: seed of the drawn incoming gradients.

    The kernel runs in this process: use `packproof.check` for one that may crash. A Triton kernel on CPU tensors runs
    in another process under Triton's interpreter, unless this process was started with TRITON_INTERPRET=1. A closure
    needs TRITON_INTERPRET=1.

    Raises CheckFailed with the worst element of each wrong tensor. Before the kernel is called, raises ArgumentError
    for tensors, options or incoming gradients that do not fit the op, LayoutError for the offsets, and UsageError for
    an unknown op. Raises another PackproofError if the kernel raises or declines the call, and if a tensor cannot be
    judged at these inputs.

    >>> import torch, packproof
    >>> x, weight = torch.randn(8, 4), torch.randn(4, 3)
    >>> cu_seqlens = torch.tensor([0, 3, 3, 8])
    >>> conv = packproof.refs.causal_conv1d
    >>> packproof.gradcheck(conv, {"x": x, "weight": weight}, cu_seqlens=cu_seqlens, op="causal_conv1d")
    >>> packproof.gradcheck(conv, {"x": x, "weight": weight[:3]}, cu_seqlens=cu_seqlens, op="causal_conv1d")
    Traceback (most recent call last):
    packproof.base.errors.ArgumentError: gradcheck: weight has 3 channels (axis d) but x has 4
        x                float32 (8, 4)
        weight           float32 (3, 3)
        cu_seqlens       int64 (4,)
    """
    tool = Tool.create("gradcheck", function, op, promises=promises)
    sample = sample_of_tensors(tool, inputs, cu_seqlens, options, cotangents, check_seed("gradcheck", seed))
    device = inputs[next(iter(tool.op.inputs))].device
    with closing(LocalRunner(function, str(device))) as runner:
        subject = KernelUnderTest(tool.op, runner, tool.declaration.promises)
        expected = run_reference(tool, lambda: subject.expect(sample))
        actual = subject.run(sample)
    wrong_tensors = []
    for key, x in actual.items():
        row_map = subject.row_map(key, sample)
        for violation in Comparison(key, x, expected.values[key], row_map, expected.budgets[key]).violations():
            wrong_tensors.append(f"{key}: {'; '.join(violation.lines())}")
    if wrong_tensors:
        raise CheckFailed(
            "\n    ".join(
                [f"gradcheck: {tool.op.name} is wrong in {plural(len(wrong_tensors), 'tensor')}", *wrong_tensors]
            )
        )
    if expected.vacuous:
        raise VacuousBound(
            f"gradcheck: the error bound of {', '.join(map(str, expected.vacuous))} is as large as the values at these "
            "inputs, so that they are not judged; all else is within its budget"
        )
