"""Outputs without a gradient: of a kernel that has no backward pass, or at some layouts alone."""

from contextlib import suppress

from packproof.base.errors import KernelFault
from packproof.harness.check.diagnosis.conventions import small_cases
from packproof.properties.calling import Refusal
from packproof.properties.cases import DETACHED, Case, Space, shorten
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import Violation

_NO_BACKWARD_PASS = "a kernel without a backward pass takes --forward-only, or declares gradients=False"


def detached_advice(kernel: KernelUnderTest, case: Case, violation: Violation, space: Space) -> list[str]:
    """A line for a violation of detached outputs; empty for any other.

    case: the smallest case where they are detached.
    space: the space of the kernel's cases.
    """
    if DETACHED not in violation.text:
        return []
    with kernel.runner.with_short_timeout():
        for other_case in small_cases(space, lambda c: c.lengths != case.lengths):
            with suppress(KernelFault, Refusal):
                kernel.run(kernel.sample(other_case), gradients=True)
                layout = f"lengths {shorten(other_case.lengths)}"
                return [
                    f"gradients come at {layout}: here its result is a constant, without a graph back to the inputs"
                ]
    return [_NO_BACKWARD_PASS]
