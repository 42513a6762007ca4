"""The exceptions of packproof. `except PackproofError` catches every error raised on purpose."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Literal, TypeVar, cast

FaultKind = Literal["raised", "crashed", "hung", "exited", "malformed", "patched", "memory", "launch", "killed"]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


class PackproofError(Exception):
    """Base of every error raised by packproof on purpose.

    >>> from packproof import ArgumentError, CheckFailed, PackproofError, UsageError
    >>> all(issubclass(error, PackproofError) for error in (ArgumentError, CheckFailed, UsageError))
    True
    """


class ArgumentError(PackproofError, ValueError):
    """An argument has an unsupported shape, dtype, device or value. It is a ValueError too.

    >>> import torch
    >>> from packproof import refs
    >>> refs.causal_conv1d(torch.ones(5, 3), torch.ones(4, 2), cu_seqlens=torch.tensor([0, 5]))
    Traceback (most recent call last):
        ...
    packproof.base.errors.ArgumentError: causal_conv1d: weight has 4 channels (axis d) but x has 3
        x                float32 (5, 3)
        weight           float32 (4, 2)
        cu_seqlens       int64 (2,)
    """

    contradictory = False
    """Whether the arguments contradict each other. No function can support such a call."""


class LayoutError(ArgumentError):
    """Lengths, offsets or ids do not describe a pack.

    >>> from packproof import PackLayout
    >>> PackLayout((3, -1))
    Traceback (most recent call last):
        ...
    packproof.base.errors.LayoutError: PackLayout: lengths entry 1 is -1; 0 or more was expected
    """

    contradictory = True


def contradiction(text: str) -> ArgumentError:
    """An ArgumentError for arguments contradicting each other."""
    error = ArgumentError(text)
    error.contradictory = True
    return error


class UsageError(PackproofError):
    """A check cannot run as requested: unknown op or property, failed import of a target, damaged file.

    >>> import packproof
    >>> packproof.Promises(chunk=0)
    Traceback (most recent call last):
        ...
    packproof.base.errors.UsageError: promises: chunk is 0, expected a number of tokens, at least 1, or None
    """


class BrokenInstallation(PackproofError):
    """packproof cannot work here: a dependency cannot be imported, or has an incompatible version.

    >>> from packproof.base.errors import BrokenInstallation, UsageError
    >>> issubclass(BrokenInstallation, UsageError)
    False
    """


class MissingWallError(PackproofError):
    """`--isolate`: the system does not put up one of the walls around a kernel, and the kernel has not run.

    >>> from packproof.base.errors import MissingWallError, UsageError
    >>> issubclass(MissingWallError, UsageError)
    False
    """


class InaccurateError(PackproofError, AssertionError):
    """A result is outside its error budget. It is an AssertionError too, as autotuners expect of an accuracy check.

    >>> from packproof.base.errors import InaccurateError
    >>> issubclass(InaccurateError, AssertionError)
    True
    """


class OutsideConvention(PackproofError, NotImplementedError):
    """The convention of an adapter cannot express a pack. Its kernel is not judged on it.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.Padded().to(torch.zeros(1, 1).expand(2**20, 8), torch.tensor([0, *range(2**20 - 4096, 2**20 + 1)]))
    Traceback (most recent call last):
        ...
    packproof.base.errors.OutsideConvention: a padded batch of 4097 x 1044480 tokens would have 2^31 elements or more
    """


def checked_call(function: F) -> F:
    """Decorate a function: an unknown or missing argument raises ArgumentError with the names of its parameters."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError:
            problem = _call_problem(function, args, options)
            if not problem:
                raise
        raise ArgumentError(problem)

    return cast("F", call)


def copy_signature_of(source: F, **extra_defaults: Any) -> Callable[[Callable[..., Any]], F]:
    """Decorate a function: it has the signature of `source`, checked, and gets all arguments by name, with defaults.

    extra_defaults: further keyword-only parameters, before those of `source`, with their defaults.
    """
    parameters = list(signature(source).parameters.values())
    extra = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=x, annotation=type(x)) for name, x in extra_defaults.items()
    ]
    n_positional = sum(parameter.kind in _BY_POSITION for parameter in parameters)
    parameters[n_positional:n_positional] = extra
    copied_signature = signature(source).replace(parameters=parameters)

    def decorate(function: Callable[..., Any]) -> F:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            arguments = copied_signature.bind(*args, **options)
            arguments.apply_defaults()
            return function(**arguments.arguments)

        call.__signature__ = copied_signature  # type: ignore[attr-defined]
        return cast("F", checked_call(call))

    return decorate


def typed_as(_overloads: Callable[[], F]) -> Callable[[Callable[..., Any]], F]:
    """Decorate a function for type checkers alone: they give it the type of a function in `overloads.pyi`.

    _overloads: a lambda with that function. Python never calls it, since it cannot import a stub.
    """
    return lambda function: cast("F", function)


def checked_init(cls: C) -> C:
    """Decorate a class: its constructor checks its call as `checked_call` does."""
    cls.__init__ = checked_call(cls.__init__)  # type: ignore[misc]
    return cls


_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _call_problem(function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """Describe how a call violates the function's signature; "" if it does not."""
    from difflib import get_close_matches  # noqa: PLC0415  (a wrong call may wait)

    name = function.__qualname__.split("<locals>.")[-1].removesuffix(".__init__")
    parameters = dict(signature(function).parameters)
    for owner in {"self", "cls"} & {next(iter(parameters), "")}:
        del parameters[owner]
        args = args[1:]
    has_varargs = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values())
    positional_names = [p.name for p in parameters.values() if p.kind in _BY_POSITION]
    unknown_option = next((option for option in options if option not in parameters), None)
    duplicate = next((parameter for parameter in positional_names[: len(args)] if parameter in options), None)
    passed_names = {*positional_names[: len(args)], *options}
    required_parameters = [
        p for p in parameters.values() if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    missing_names = [p.name for p in required_parameters if p.default is Parameter.empty and p.name not in passed_names]
    if unknown_option is not None:
        suggestions = [p for p in parameters if unknown_option.startswith(f"{p}_")] or get_close_matches(
            unknown_option, parameters, n=1
        )
        suggestions += [p for p in parameters if p in unknown_option.split("_") or unknown_option in p.split("_")]
        problem = f"{unknown_option} is no argument" + (f"; did you mean {suggestions[0]}?" if suggestions else "")
    elif len(args) > len(positional_names) and not has_varargs:
        problem = f"{len(args)} arguments came by position but at most {len(positional_names)} were expected"
    elif duplicate is not None:
        problem = f"{duplicate} came twice, by position and by name"
    elif missing_names:
        names = " and ".join(filter(None, [", ".join(missing_names[:-1]), missing_names[-1]]))
        problem = f"{names} {_is_or_are(missing_names)} missing"
    else:
        return ""
    return f"{name}: {problem}\n    It takes {', '.join(parameters) or 'nothing'}."


def _is_or_are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


class KernelFault(PackproofError):
    """The kernel did not return a result. The message is for reports.

    kind: how the call ended.
    note: how a property had changed the pack, "" if it did not.
    """

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.note = ""

    def refuses(self, *words: str) -> bool:
        """Whether the kernel raised an error with one of these words: a clear refusal."""
        return self.kind == "raised" and any(word in str(self).lower() for word in words)


class OutOfTime(PackproofError):
    """The run reached its time limit before the kernel answered. Neither kernel nor call is at fault."""


class OutOfMemory(OutOfTime):
    """The system lacked the memory for the kernel's process, however often it was started. No one is at fault."""


class UnwrittenReadError(KernelFault):
    """The kernel loaded floats that were never written. Whether it uses them is not known yet."""

    def __init__(self, message: str) -> None:
        super().__init__("memory", message)
