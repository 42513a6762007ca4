"""Whether this process interprets Triton kernels: then its interpreter is repaired before the first of them runs."""

import sys


def interprets() -> bool:
    """Whether Triton kernels defined in this process are interpreted, or were when triton was imported."""
    triton = sys.modules.get("triton")
    if triton is None:
        return False
    return triton.knobs.runtime.interpret or not isinstance(triton.language.sum, triton.runtime.JITFunction)


def repair_if_used() -> None:
    """Raises PackproofError for an interpreter that cannot be repaired: as shipped it computes incorrect values."""
    if interprets():
        from packproof.harness.interpreter.repair import install  # noqa: PLC0415  (needs triton)

        install()
