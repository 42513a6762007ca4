"""How a kernel takes the arguments of an op: read from its signature and the adapter's declaration."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packproof.base.axes import parse
from packproof.base.errors import UsageError
from packproof.properties.calling import call_signature, catches_all
from packproof.properties.ops import Op

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class KernelSignature:
    """The signature of a kernel together with its declaration in `adapt`."""

    function: Callable[..., Any]
    """The kernel."""
    title: str
    """Its name in error texts."""
    op: Op
    """The op that the adapter computes."""
    names: Mapping[str, str]
    """The kernel's names of the op's arguments, where they differ."""
    metadata: Iterable[str]
    """The kernel's arguments declared as metadata."""
    given: Iterable[str]
    """The kernel's arguments with the same value for every pack."""
    without: frozenset[str]
    """Arguments of the op that the kernel names but does not support."""
    positional: tuple[str, ...]
    """The kernel's arguments declared as positional, in order."""

    def kernel_name(self, name: str) -> str:
        """The kernel's name of one of the op's arguments."""
        return self.names.get(name, name)

    @cached_property
    def op_arguments(self) -> tuple[str, ...]:
        """The op's inputs and options taken by the kernel. Raises UsageError unless it can be called as declared."""
        self._check()
        op_names, kernel_names = [*self.op.inputs, *self.op.options], {*self._parameters, *self.positional}
        declared_names = {*self._required_inputs, *self.names} if self._catches_all else self._required_inputs
        return tuple(
            n
            for n in op_names
            if (self.kernel_name(n) in kernel_names or n in declared_names) and n not in self.without
        )

    @cached_property
    def positional_arguments(self) -> tuple[str, ...]:
        """The kernel's arguments passed by position, in order."""
        kind = inspect.Parameter.POSITIONAL_ONLY
        return self.positional or tuple(n for n, p in self._parameters.items() if p.kind is kind)

    @cached_property
    def op_defaults(self) -> Mapping[str, Any]:
        """Values for optional arguments of the op that the kernel requires, in calls without them."""
        plain_values = {**dict.fromkeys(self.op.inputs), **{n: values[0] for n, values in self.op.options.items()}}
        return {
            n: x
            for n, x in plain_values.items()
            if n not in self._required_inputs and self._is_required_by_kernel(self.kernel_name(n))
        }

    @cached_property
    def kernel_defaults(self) -> Mapping[str, Any]:
        """The kernel's own defaults of its positional arguments."""
        positional_defaults = {
            n: self._parameters[n].default for n in self.positional_arguments if n in self._parameters
        }
        return {n: value for n, value in positional_defaults.items() if value is not inspect.Parameter.empty}

    def _is_required_by_kernel(self, name: str) -> bool:
        parameter = self._parameters.get(name)
        return name in self.positional or (
            parameter is not None and parameter.default is parameter.empty and parameter.kind not in _VARIADIC
        )

    @cached_property
    def _signature(self) -> inspect.Signature:
        signature = call_signature(self.function)
        takes_no_names = all(p.kind is p.POSITIONAL_ONLY for p in signature.parameters.values())
        return (
            inspect.Signature() if self.positional and takes_no_names else signature
        )  # `positional` has other names for them

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return self._signature.parameters

    @property
    def _catches_all(self) -> bool:
        return catches_all(self._signature)

    @property
    def _required_inputs(self) -> frozenset[str]:
        return required_inputs(self.op)

    def _check(self) -> None:
        """Raises UsageError for a required argument without a value, or a value without an argument."""
        named_parameters = {n: p for n, p in self._parameters.items() if p.kind not in _VARIADIC}
        sources = {
            **{
                self.kernel_name(n): f"the op's {n}"
                for n in {*self._required_inputs, *self.names}
                if n not in self.without
            },
            **dict.fromkeys(self.metadata, "in metadata"),
            **dict.fromkeys(self.given, "in given"),
        }
        parameter_names = ", ".join(self._parameters) or "nothing"
        for name, source in sources.items():
            if not (name in named_parameters or self._catches_all or name in self.positional):
                raise UsageError(
                    f"adapt({self.title}): the adapter passes {name!r} ({source}), "
                    f"but the kernel takes ({parameter_names}); "
                    "map the op's arguments to the kernel's in names, and declare others in metadata and given"
                )
        provided_names = {*sources, *(self.kernel_name(n) for n in (*self.op.inputs, *self.op.options))}
        for name, parameter in named_parameters.items():
            if parameter.default is parameter.empty and name not in provided_names:
                raise UsageError(
                    f"adapt({self.title}): the kernel requires {name!r}, which is not passed to it; declare it in "
                    f"names, metadata or given, such as given={{{name!r}: ...}}"
                )
        self._check_order(list(named_parameters), sources)

    def _check_order(self, parameter_names: list[str], sources: Mapping[str, str]) -> None:
        """Raises UsageError unless the positional arguments are the kernel's first ones.

        If its signature names none, they must be all of its arguments.
        """
        if not self.positional:
            return
        leading_parameters = tuple(parameter_names[: len(self.positional)])
        if parameter_names and leading_parameters != self.positional:
            raise UsageError(
                f"adapt({self.title}): positional is ({', '.join(self.positional)}), expected the kernel's first "
                f"arguments in its order, ({', '.join(leading_parameters)})"
            )
        missing = [name for name in sources if name not in (*parameter_names, *self.positional)]
        if missing:
            raise UsageError(
                f"adapt({self.title}): positional is ({', '.join(self.positional)}), expected {missing[0]!r} "
                f"({sources[missing[0]]}) too, since the kernel's signature names no argument"
            )


def required_inputs(op: Op) -> frozenset[str]:
    """The inputs of the op that are not optional."""
    return frozenset(n for n, spec in op.inputs.items() if not parse(spec).optional)
