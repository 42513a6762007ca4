"""How a call of a module ends without a result: it refused, crashed, or took its process with it."""

from packproof.base.errors import KernelFault, PackproofError
from packproof.harness.process import loses_the_device
from packproof.models.subjects.pack import Lengths


class ModuleRefused(PackproofError):
    """The module raised an error for this call, or does not take an argument of the convention."""

    by_unset_variable = False
    """Whether it read a variable before it was set: a mistake in its code, not a refusal."""


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


def failed_call(error: BaseException, stage: str = "") -> ModuleRefused | ModuleCrashed:
    """The exception to raise for one that the module raised.

    stage: where it was raised, "" for the forward pass.
    """
    text = f"{stage}{type(error).__name__}: {_first_line(error)}"
    if loses_the_device(error):
        return ModuleCrashed(text)
    refusal = ModuleRefused(text)
    refusal.by_unset_variable = isinstance(error, NameError)
    return refusal


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
