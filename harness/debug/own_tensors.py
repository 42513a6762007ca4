"""Checks the user's tensors, options and kernel before anything runs: mistakes in them are not the kernel's fault."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.harness.engine.target import resolve_op
from packproof.harness.results.names import SEED, is_seed
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.drawing import dtype_of
from packproof.properties.cases.sample import Sample
from packproof.properties.declaration import Declaration, brought_op, check_signature, declaration, describe
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.refs.arguments import OFFSETS, bind, check_options
from packproof.refs.axes import KEYS, Axes, parse, role
from packproof.refs.errors import ArgumentError, PackproofError
from packproof.refs.signatures import SIGNATURES, Signature
from packproof.refs.wording import article


@dataclasses.dataclass(frozen=True)
class Tool:
    """One call of a debugging tool: the kernel, its op and its declaration."""

    name: str
    """Name of the tool, at the start of its messages."""
    kernel: Callable[..., Any]
    """The user's kernel."""
    kernel_name: str
    """Name of the kernel in messages."""
    op: Op
    """The op computed by the kernel."""
    declared: Declaration
    """The kernel's parameters, promises and domain."""

    @classmethod
    def of(cls, name: str, kernel: Any, op: Any, kernel_name: str = "", promises: Any = None) -> "Tool":
        """Check the arguments of a tool. Raises ArgumentError for a kernel, op or promises of another type, UsageError
        for an unknown op."""
        if not callable(kernel):
            raise ArgumentError(f"{name}: the kernel is {kind(kernel)} but a function was expected")
        if not isinstance(op, str | Op | None):
            raise ArgumentError(f"{name}: op is {kind(op)} but the name of an op, or a packproof.Op, was expected")
        if not isinstance(promises, Promises | None):
            raise ArgumentError(f"{name}: promises is {kind(promises)} but packproof.Promises(...) was expected")
        kernel_name = kernel_name or str(getattr(kernel, "__qualname__", repr(kernel)))
        declared = declaration(describe(kernel), kernel_name)
        if promises is not None:
            declared = dataclasses.replace(declared, promises=promises)
        known = resolve_op(op or brought_op(kernel), declared, f"{name}: {kernel_name}")
        check_signature(known, declared, f"{name}: {kernel_name}")
        return cls(name, kernel, kernel_name, known, declared)

    def fail(self, text: str) -> ArgumentError:
        """An ArgumentError, to be raised, with the name of the tool."""
        return ArgumentError(f"{self.name}: {text}")

    @property
    def signature(self) -> Signature:
        """The op's signature, under this tool's name."""
        op, own = self.op, SIGNATURES.get(self.op.name)
        if own is not None and own.inputs == op.inputs:
            return dataclasses.replace(own, op=self.name)
        tables, integers = op.constants - op.integers, op.integers
        return Signature(self.name, op.inputs, op.outputs, op.options, op.fixed, tables, integers)

    def options(self, given: Any) -> dict[str, Any]:
        """The options by name. Raises ArgumentError for a bad value, and for an option unknown to the op or kernel."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise self.fail(f"options is {kind(given)} but a dict of the op's options by name was expected")
        for name, value in given.items():
            if name in self.op.inputs:
                raise self.fail(f"options has {name!r}, which is an input: pass it among the tensors")
            if name not in self.op.options:
                raise self.fail(f"options has {name!r}{near(name, self.op.options)}; {self._has('option')}")
            if name in self.signature.options:
                check_options(self.signature, **{name: value})
            self.require_taken("option", name)
        return dict(given)

    def require_taken(self, what: str, name: str) -> None:
        """Raises ArgumentError if the kernel has no parameter for an optional input or an option."""
        declared = self.declared
        if declared.parameters is not None and name not in declared.parameters and not declared.catch_all:
            takes = ", ".join(declared.parameters)
            raise self.fail(f"{what} {name!r} was given but {self.kernel_name} does not take it; it takes ({takes})")

    def tensors(self, given: Any, what: str, names: Iterable[str], which: str = "") -> dict[str, Tensor]:
        """The tensors by name, in the order of `names`. Raises ArgumentError for any other name, and for a value other
        than a dense tensor of floating-point numbers (of integers, for an integer input).

        noun: "input" or "cotangent", for messages.
        hint: text after the list of names, for messages.
        """
        names = list(names)
        if not isinstance(given, Mapping):
            raise self.fail(f"{what}s is {kind(given)} but a dict of tensors by name was expected: {', '.join(names)}")
        for name, x in given.items():
            if name not in names:
                there = f"{self.op.name} has {', '.join(names) or 'none'}{which}"
                raise self.fail(f"no {what} {name!r} is known{near(name, names)}; {there}")
            if not isinstance(x, Tensor):
                raise self.fail(f"{what} {name!r} is {kind(x)} but a tensor was expected")
            expected = "integers" if name in self.op.integers else "floating-point values"
            good = x.dtype in OFFSETS if name in self.op.integers else x.is_floating_point()
            if x.layout is not torch.strided or not good or x.device.type == "meta":
                form = str(x.dtype if x.layout is torch.strided else x.layout).removeprefix("torch.")
                form = "on the meta device" if x.device.type == "meta" else form
                raise self.fail(f"{what} {name!r} is {form} but a dense tensor of {expected} was expected")
        return {name: given[name] for name in names if name in given}

    def _has(self, what: str) -> str:
        return f"{self.op.name} has {', '.join(self.op.options) or f'no {what}'}"


def own_sample(
    tool: Tool, inputs: Any, cu_seqlens: Any, options: Any = None, cotangents: Any = None, seed: int = 0
) -> Sample:
    """The user's tensors as a sample on the CPU. Missing incoming gradients are drawn.

    Raises ArgumentError with the argument, its value and the expected one, and LayoutError for the offsets.
    """
    op, chosen = tool.op, tool.options(options)
    given = tool.tensors(inputs, "input", op.inputs)
    missing = [n for n, spec in op.inputs.items() if n not in given and not parse(spec).optional]
    if missing:
        has = ", ".join(f"{n} ({spec})" for n, spec in op.inputs.items())
        raise tool.fail(f"input {missing[0]!r} is missing; {op.name} takes {has}, where ? is optional")
    for name in given:
        tool.require_taken("input", name)
    leader = given[next(iter(op.inputs))]
    offsets = cu_seqlens.to(leader.device) if isinstance(cu_seqlens, Tensor) else cu_seqlens
    sizes = bind(tool.signature, offsets, values=True, **given)
    ends = offsets.tolist()
    axes = {n: _axes(op.inputs[n], x) for n, x in given.items()}
    axes |= {n: parse(spec).alternatives[0] for n, spec in op.outputs.items()}
    _check_sizes(tool, sizes, given, axes)
    host = {n: x.detach().cpu() for n, x in given.items()}
    lengths, slack = tuple(b - a for a, b in pairwise(ends)), len(leader) - ends[-1]
    named = {k: v for k, v in sizes.items() if k not in ("t", KEYS, "s")}
    sample = Sample(op, lengths, slack, host, {}, chosen, axes, named, offsets.dtype)
    incoming = _incoming(tool, sample, cotangents, seed)
    _check_finite(tool, sample, {**host, **{f"cotangent {n}": x for n, x in incoming.items()}})
    return dataclasses.replace(sample, cotangents=incoming)


def reference_first(tool: Tool, run: Callable[[], Any]) -> Any:
    """Run the reference, before the kernel is called. Raises ArgumentError if the reference does not take the call."""
    try:
        return run()
    except PackproofError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise tool.fail(f"the reference of {tool.op.name} does not take this call: {reason}") from error


def check_seed(name: str, seed: Any) -> int:
    if not is_seed(seed):
        raise ArgumentError(f"{name}: seed is {seed!r} but {SEED} was expected")
    return seed


def kind(value: object) -> str:
    """A wrong argument as messages show it: a short value as it is, else its type."""
    shown = repr(value) if value is None or isinstance(value, str | int | float) else ""
    return shown if 0 < len(shown) <= 60 else article(type(value).__name__)


def near(name: Any, names: Iterable[str]) -> str:
    found = get_close_matches(str(name), list(names), n=1) or [n for n in names if n.lower() == str(name).lower()]
    return f", did you mean {found[0]!r}?" if found else ""


def parameters(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function, or None if Python cannot read it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _axes(spec: str, x: Tensor) -> Axes:
    return next(axes for axes in parse(spec).alternatives if len(axes) == x.dim())


def _check_sizes(tool: Tool, sizes: Mapping[str, int], given: Mapping[str, Tensor], axes: Mapping[str, Axes]) -> None:
    """Raises ArgumentError for a wrong size of a fixed axis, and for sizes outside the domain of the op."""
    for name, x in given.items():
        for axis, size in zip(axes[name], x.shape, strict=True):
            if axis.isdigit() and size != int(axis):
                raise tool.fail(f"{name} has shape {tuple(x.shape)} but ({' '.join(axes[name])}) was expected")
    for condition in Domain.of(tool.op.where).conditions:
        if condition.names <= sizes.keys() and not condition.holds(sizes):
            named = ", ".join(f"{axis} = {sizes[axis]}" for axis in sorted(condition.names & sizes.keys()))
            raise tool.fail(f"the tensors have {named} but {tool.op.name} needs {condition.text}")


def _incoming(tool: Tool, sample: Sample, cotangents: Any, seed: int) -> dict[str, Tensor]:
    """The incoming gradient of each output: the user's, or else a drawn one."""
    absent = [n for n in tool.op.outputs if n not in sample.outputs]
    which = f" (and {', '.join(absent)} with {tool.op.carry[2]}=True)" if absent and tool.op.carry else ""
    given = tool.tensors({} if cotangents is None else cotangents, "cotangent", sample.outputs, which)
    tokens = str(sample.inputs[next(iter(tool.op.inputs))].dtype).removeprefix("torch.")
    generator = torch.Generator().manual_seed(seed)
    incoming = {}
    for name in sample.outputs:
        shape, dtype = sample.shape(name), dtype_of(tool.op, name, tokens)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        x = given.get(name, drawn)
        if tuple(x.shape) != shape or x.dtype != dtype:
            wanted = f"{str(dtype).removeprefix('torch.')} {shape}, as {name}, was expected"
            raise tool.fail(
                f"cotangent {name!r} is {str(x.dtype).removeprefix('torch.')} {tuple(x.shape)} but {wanted}"
            )
        incoming[name] = x.detach().cpu()
    return incoming


def _check_finite(tool: Tool, sample: Sample, tensors: Mapping[str, Tensor]) -> None:
    """Raises ArgumentError for NaN or infinity in a sequence: the reference has no value there. Slack may hold
    anything."""
    for name, x in tensors.items():
        tokens = role(sample.axes[name.removeprefix("cotangent ")]) == "token"
        bad = (~x[: sample.offsets[-1] if tokens else None].isfinite()).nonzero()
        if len(bad):
            index = bad[0].tolist()
            raise tool.fail(f"{name} is {float(x[tuple(index)])} at {index} but finite values were expected")
