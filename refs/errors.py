"""The exceptions of packproof: one family, so that `except PackproofError` catches everything raised on purpose."""


class PackproofError(Exception):
    """Base of every error that packproof raises on purpose."""


class ArgumentError(PackproofError, ValueError):
    """An argument has a shape, dtype, device or value that the call cannot take."""


class LayoutError(ArgumentError):
    """Lengths, offsets or ids that do not describe a pack."""


class UsageError(PackproofError):
    """A check cannot be run as requested: unknown op or property, target that cannot be imported, damaged file."""


class CheckFailed(PackproofError, AssertionError):
    """A kernel broke a property; the text is the report."""
