"""The exceptions of packproof: one family, so that `except PackproofError` catches everything raised on purpose."""


class PackproofError(Exception):
    """Base of every error that packproof raises on purpose.

    >>> from packproof import ArgumentError, CheckFailed, PackproofError, UsageError
    >>> all(issubclass(error, PackproofError) for error in (ArgumentError, CheckFailed, UsageError))
    True
    """


class ArgumentError(PackproofError, ValueError):
    """An argument has a shape, dtype, device or value that the call cannot take. It is a ValueError too.

    >>> import torch
    >>> from packproof import refs
    >>> refs.causal_conv1d(torch.ones(5, 3), torch.ones(4, 2), cu_seqlens=torch.tensor([0, 5]))
    Traceback (most recent call last):
        ...
    packproof.refs.errors.ArgumentError: causal_conv1d: weight has 4 channels (axis d) but x has 3
        x                float32 (5, 3)
        weight           float32 (4, 2)
        cu_seqlens       int64 (2,)
    """


class LayoutError(ArgumentError):
    """Lengths, offsets or ids that do not describe a pack.

    >>> from packproof import PackLayout
    >>> PackLayout((3, -1))
    Traceback (most recent call last):
        ...
    packproof.refs.errors.LayoutError: PackLayout: lengths entry 1 is -1; 0 or more was expected
    """


class UsageError(PackproofError):
    """A check cannot be run as requested: unknown op or property, target that cannot be imported, damaged file.

    >>> import packproof
    >>> packproof.Promises(chunk=0)
    Traceback (most recent call last):
        ...
    packproof.refs.errors.UsageError: promises: chunk is 0, expected a number of tokens, at least 1, or None
    """


class CheckFailed(PackproofError, AssertionError):
    """A kernel broke a property; the text is the report. It is an AssertionError too.

    >>> import packproof, torch
    >>> def tripled(x, cos, sin, *, cu_seqlens):
    ...     return 3 * x
    >>> inputs = {"x": torch.ones(2, 1, 2), "cos": torch.zeros(2, 1), "sin": torch.ones(2, 1)}
    >>> try:
    ...     packproof.gradcheck(tripled, inputs, cu_seqlens=torch.tensor([0, 2]), op="rope")
    ... except packproof.CheckFailed as failed:
    ...     print("y: sequence 0" in str(failed))
    True
    """
