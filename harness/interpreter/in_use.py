"""Whether this process interprets Triton kernels: then its interpreter is repaired before the first of them runs."""

import sys
from typing import Any, NoReturn

from packproof.refs.errors import PackproofError
from packproof.version import installed, tried


class UnfitInterpreterError(PackproofError):
    """A Triton kernel cannot be interpreted here: packproof's repair does not fit this release of Triton."""


class _Process:
    misfit = ""
    """Why no Triton kernel is interpreted in this process; "" where they are."""


def misfit() -> str:
    """Why no Triton kernel is interpreted in this process and its forks; "" where they are."""
    return _Process.misfit


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


def repair_or_refuse() -> None:
    """Repair the interpreter of this process; where that fails, launches raise UnfitInterpreterError, and kernels
    without Triton run as ever."""
    try:
        from packproof.harness.interpreter.repair import install  # noqa: PLC0415  (needs triton)

        install()
    except Exception as error:  # also of a name that Triton no longer has
        own = isinstance(error, PackproofError)
        _Process.misfit = str(error) if own else _unknown(error)
        _refuse_launches()


def _unknown(error: Exception) -> str:
    return (
        f"packproof does not know triton {installed('triton')}: {type(error).__name__}: {error}. "
        f"Use triton {tried('triton')}, or check on a GPU."
    )


def _refuse_launches() -> None:
    from triton.runtime import interpreter as shipped  # noqa: PLC0415

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnfitInterpreterError(_Process.misfit)

    shipped.InterpretedFunction.run = refuse
