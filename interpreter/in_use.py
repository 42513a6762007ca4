"""Whether this process interprets Triton kernels. If so, its interpreter is repaired before the first one runs."""

import sys
from typing import Any, NoReturn

from packproof.base.errors import PackproofError
from packproof.version import installed, tried


class UnfitInterpreterError(PackproofError):
    """A Triton kernel cannot be interpreted here: packproof's repair does not fit this release of Triton."""


class _Process:
    misfit = ""
    """Why this process cannot interpret Triton kernels; "" if it can."""


def misfit() -> str:
    """Why this process and its forks cannot interpret Triton kernels; "" if they can."""
    return _Process.misfit


def is_interpreting() -> bool:
    """Whether this process interprets the Triton kernels it defines, or did so when triton was imported."""
    triton = sys.modules.get("triton")
    if triton is None:
        return False
    return triton.knobs.runtime.interpret or not isinstance(triton.language.sum, triton.runtime.JITFunction)


def repair_if_used() -> None:
    """Repair the interpreter if this process uses it: as shipped it computes incorrect values. Raises PackproofError if
    the repair fails."""
    if is_interpreting():
        from packproof.interpreter.repair import install  # noqa: PLC0415  (needs triton)

        install()


def repair_or_refuse() -> None:
    """Repair the interpreter of this process. If this fails, launches raise UnfitInterpreterError; kernels without
    Triton run as usual."""
    try:
        from packproof.interpreter.repair import install  # noqa: PLC0415  (needs triton)

        install()
    except Exception as error:  # any type: another release of Triton may lack a name
        is_packproof_error = isinstance(error, PackproofError)
        _Process.misfit = str(error) if is_packproof_error else _unknown_release_text(error)
        _refuse_launches()


def _unknown_release_text(error: Exception) -> str:
    return (
        f"packproof does not know triton {installed('triton')}: {type(error).__name__}: {error}. "
        f"Use triton {tried('triton')}, or check on a GPU."
    )


def _refuse_launches() -> None:
    from triton.runtime import interpreter as shipped  # noqa: PLC0415

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnfitInterpreterError(_Process.misfit)

    shipped.InterpretedFunction.run = refuse
