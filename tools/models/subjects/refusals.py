"""How a call of a module ends without a result: it refused, crashed, or took its process with it."""

import re
from collections.abc import Callable

from packproof.base.errors import KernelFault, PackproofError
from packproof.harness.process import is_raised_by_torch, loses_the_device
from packproof.models.subjects.pack import Lengths

_SIZES = re.compile(r"\b(sizes?|shapes?)\b")
_UNSET_VARIABLE = "a variable that was never set is a mistake in its code, not a refusal"
_SIZES_INSIDE = (
    "sizes that do not fit inside a computation are no refusal under a convention of your own: "
    "without its arguments the module takes the same tokens"
)


class ModuleRefused(PackproofError):
    """The module raised an error for this call, or does not take an argument of the convention."""

    mistake = ""
    """Why it is a mistake in the module's code and no refusal, "" if it may be one."""


class NoOutput(ModuleRefused):
    """The module returned no tensor with one row per token, or none under the requested name."""


class NoGradient(ModuleRefused):
    """No embedding of the tokens was found, so no gradient at the tokens can be taken."""


class ModuleCrashed(PackproofError):
    """A call of the module cost its process the GPU, as a write out of bounds does: that is no refusal."""

    lengths: Lengths = ()
    """The layout of the call."""


class ModuleEnded(ModuleCrashed):
    """The process of the module ended in a call, or gave no answer in time. The text has its output."""

    def __init__(self, fault: KernelFault) -> None:
        super().__init__(str(fault))
        self.kind = fault.kind


def failed_call(
    error: BaseException, stage: str = "", breaks_on_convention: Callable[[], bool] = lambda: False
) -> ModuleRefused | ModuleCrashed:
    """The exception to raise for one that the module raised.

    stage: where it was raised, "" for the forward pass.
    breaks_on_convention: whether the convention is the user's own, and a call with the same tokens and none of its
        arguments returns.
    """
    text = f"{stage}{type(error).__name__}: {_first_line(error)}"
    if loses_the_device(error):
        return ModuleCrashed(text)
    refusal = ModuleRefused(text)
    if isinstance(error, NameError):
        refusal.mistake = _UNSET_VARIABLE
    elif (
        isinstance(error, RuntimeError) and _SIZES.search(text) and is_raised_by_torch(error) and breaks_on_convention()
    ):
        refusal.mistake = _SIZES_INSIDE
    return refusal


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
