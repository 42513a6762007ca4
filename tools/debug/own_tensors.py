"""Checks the user's tensors, options and kernel before anything runs: mistakes in them are not the kernel's fault."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.base.arguments import OFFSETS, bind, check_options
from packproof.base.axes import KEYS, Axes, parse, role
from packproof.base.errors import ArgumentError, PackproofError
from packproof.base.names import SEED, is_seed
from packproof.base.signatures import SIGNATURES, Signature
from packproof.base.wording import article
from packproof.harness.check.targets import resolve_op
from packproof.properties.cases import Domain, Sample, dtype_of
from packproof.properties.declarations import (
    Declaration,
    Promises,
    check_signature,
    custom_op,
    describe_kernel,
    parse_declaration,
)
from packproof.properties.ops import Op


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
    declaration: Declaration
    """The kernel's parameters, promises and domain."""

    @classmethod
    def create(cls, name: str, kernel: Any, op: Any, kernel_name: str = "", promises: Any = None) -> "Tool":
        """Check the arguments of a tool. Raises ArgumentError for a kernel, op or promises of another type, UsageError
        for an unknown op."""
        if not callable(kernel):
            raise ArgumentError(f"{name}: the kernel is {describe_value(kernel)} but a function was expected")
        if not isinstance(op, str | Op | None):
            raise ArgumentError(
                f"{name}: op is {describe_value(op)} but the name of an op, or a packproof.Op, was expected"
            )
        if not isinstance(promises, Promises | None):
            raise ArgumentError(
                f"{name}: promises is {describe_value(promises)} but packproof.Promises(...) was expected"
            )
        kernel_name = kernel_name or str(getattr(kernel, "__qualname__", repr(kernel)))
        declared = parse_declaration(describe_kernel(kernel), kernel_name)
        if promises is not None:
            declared = dataclasses.replace(declared, promises=promises)
        resolved_op = resolve_op(op or custom_op(kernel), declared, f"{name}: {kernel_name}")
        check_signature(resolved_op, declared, f"{name}: {kernel_name}")
        return cls(name, kernel, kernel_name, resolved_op, declared)

    @classmethod
    def of_op(cls, name: str, op: str | Op, promises: Promises | None) -> "Tool":
        """The op alone, whose reference stands for a kernel. Raises as `create` does."""
        resolved_op = resolve_op(op, Declaration(), name)
        return cls.create(name, resolved_op.reference, resolved_op, resolved_op.name, promises)

    def fail(self, text: str) -> ArgumentError:
        """An ArgumentError, to be raised, with the name of the tool."""
        return ArgumentError(f"{self.name}: {text}")

    @property
    def signature(self) -> Signature:
        """The op's signature, under this tool's name."""
        op, builtin_signature = self.op, SIGNATURES.get(self.op.name)
        if builtin_signature is not None and builtin_signature.inputs == op.inputs:
            return dataclasses.replace(builtin_signature, op=self.name)
        tables, integers = op.constants - op.integers, op.integers
        return Signature(self.name, op.inputs, op.outputs, op.options, op.fixed, tables, integers)

    def options(self, option_values: Any) -> dict[str, Any]:
        """The options by name. Raises ArgumentError for a bad value, and for an option unknown to the op or kernel."""
        if option_values is None:
            return {}
        if not isinstance(option_values, Mapping):
            raise self.fail(
                f"options is {describe_value(option_values)} but a dict of the op's options by name was expected"
            )
        for name, value in option_values.items():
            if name in self.op.inputs:
                raise self.fail(f"options has {name!r}, which is an input: pass it among the tensors")
            if name not in self.op.options:
                raise self.fail(
                    f"options has {name!r}{suggest_name(name, self.op.options)}; {self._options_text('option')}"
                )
            if name in self.signature.options:
                check_options(self.signature, **{name: value})
            self.require_parameter("option", name)
        return dict(option_values)

    def require_parameter(self, noun: str, name: str) -> None:
        """Raises ArgumentError if the kernel has no parameter for an optional input or an option."""
        declared = self.declaration
        if declared.parameters is not None and name not in declared.parameters and not declared.catch_all:
            takes = ", ".join(declared.parameters)
            raise self.fail(f"{noun} {name!r} was given but {self.kernel_name} does not take it; it takes ({takes})")

    def tensors(self, values: Any, noun: str, names: Iterable[str], hint: str = "") -> dict[str, Tensor]:
        """The tensors by name, in the order of `names`. Raises ArgumentError for any other name, and for a value other
        than a dense tensor of floating-point numbers (of integers, for an integer input).

        noun: "input" or "cotangent", for messages.
        hint: text after the list of names, for messages.
        """
        names = list(names)
        if not isinstance(values, Mapping):
            raise self.fail(
                f"{noun}s is {describe_value(values)} but a dict of tensors by name was expected: {', '.join(names)}"
            )
        for name, x in values.items():
            if name not in names:
                known_names = f"{self.op.name} has {', '.join(names) or 'none'}{hint}"
                raise self.fail(f"no {noun} {name!r} is known{suggest_name(name, names)}; {known_names}")
            if not isinstance(x, Tensor):
                raise self.fail(f"{noun} {name!r} is {describe_value(x)} but a tensor was expected")
            expected = "integers" if name in self.op.integers else "floating-point values"
            is_valid = x.dtype in OFFSETS if name in self.op.integers else x.is_floating_point()
            if x.layout is not torch.strided or not is_valid or x.device.type == "meta":
                actual = str(x.dtype if x.layout is torch.strided else x.layout).removeprefix("torch.")
                actual = "on the meta device" if x.device.type == "meta" else actual
                raise self.fail(f"{noun} {name!r} is {actual} but a dense tensor of {expected} was expected")
        return {name: values[name] for name in names if name in values}

    def _options_text(self, noun: str) -> str:
        return f"{self.op.name} has {', '.join(self.op.options) or f'no {noun}'}"


def sample_of_tensors(
    tool: Tool, inputs: Any, cu_seqlens: Any, options: Any = None, cotangents: Any = None, seed: int = 0
) -> Sample:
    """The user's tensors as a sample on the CPU. Missing incoming gradients are drawn.

    Raises ArgumentError with the argument, its value and the expected one, and LayoutError for the offsets.
    """
    op, option_values = tool.op, tool.options(options)
    tensors = tool.tensors(inputs, "input", op.inputs)
    missing = [n for n, spec in op.inputs.items() if n not in tensors and not parse(spec).optional]
    if missing:
        known_inputs = ", ".join(f"{n} ({spec})" for n, spec in op.inputs.items())
        raise tool.fail(f"input {missing[0]!r} is missing; {op.name} takes {known_inputs}, where ? is optional")
    for name in tensors:
        tool.require_parameter("input", name)
    leader = tensors[next(iter(op.inputs))]
    offsets = cu_seqlens.to(leader.device) if isinstance(cu_seqlens, Tensor) else cu_seqlens
    sizes = bind(tool.signature, offsets, values=True, **tensors)
    offset_list = offsets.tolist()
    axes = {n: _axes(op.inputs[n], x) for n, x in tensors.items()}
    axes |= {n: parse(spec).alternatives[0] for n, spec in op.outputs.items()}
    _check_sizes(tool, sizes, tensors, axes)
    cpu_tensors = {n: x.detach().cpu() for n, x in tensors.items()}
    lengths, slack = tuple(b - a for a, b in pairwise(offset_list)), len(leader) - offset_list[-1]
    axis_sizes = {k: v for k, v in sizes.items() if k not in ("t", KEYS, "s")}
    sample = Sample(op, lengths, slack, cpu_tensors, {}, option_values, axes, axis_sizes, offsets.dtype)
    all_cotangents = _complete_cotangents(tool, sample, cotangents, seed)
    _check_finite(tool, sample, {**cpu_tensors, **{f"cotangent {n}": x for n, x in all_cotangents.items()}})
    return dataclasses.replace(sample, cotangents=all_cotangents)


def run_reference(tool: Tool, run: Callable[[], Any]) -> Any:
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


def describe_value(value: object) -> str:
    """A wrong argument as messages show it: a short value as it is, else its type."""
    text = repr(value) if value is None or isinstance(value, str | int | float) else ""
    return text if 0 < len(text) <= 60 else article(type(value).__name__)


def suggest_name(name: Any, names: Iterable[str]) -> str:
    matches = get_close_matches(str(name), list(names), n=1) or [n for n in names if n.lower() == str(name).lower()]
    return f", did you mean {matches[0]!r}?" if matches else ""


def readable_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function, or None if Python cannot read it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _axes(spec: str, x: Tensor) -> Axes:
    return next(axes for axes in parse(spec).alternatives if len(axes) == x.dim())


def _check_sizes(tool: Tool, sizes: Mapping[str, int], tensors: Mapping[str, Tensor], axes: Mapping[str, Axes]) -> None:
    """Raises ArgumentError for a wrong size of a fixed axis, and for sizes outside the domain of the op."""
    for name, x in tensors.items():
        for axis, size in zip(axes[name], x.shape, strict=True):
            if axis.isdigit() and size != int(axis):
                raise tool.fail(f"{name} has shape {tuple(x.shape)} but ({' '.join(axes[name])}) was expected")
    for condition in Domain.of(tool.op.where).conditions:
        if condition.names <= sizes.keys() and not condition.holds(sizes):
            actual_sizes = ", ".join(f"{axis} = {sizes[axis]}" for axis in sorted(condition.names & sizes.keys()))
            raise tool.fail(f"the tensors have {actual_sizes} but {tool.op.name} needs {condition.text}")


def _complete_cotangents(tool: Tool, sample: Sample, cotangents: Any, seed: int) -> dict[str, Tensor]:
    """The incoming gradient of each output: the user's, or else a drawn one."""
    absent_outputs = [n for n in tool.op.outputs if n not in sample.outputs]
    hint = (
        f" (and {', '.join(absent_outputs)} with {tool.op.carry[2]}=True)" if absent_outputs and tool.op.carry else ""
    )
    user_cotangents = tool.tensors({} if cotangents is None else cotangents, "cotangent", sample.outputs, hint)
    token_dtype = sample.token_dtype_name
    generator = torch.Generator().manual_seed(seed)
    all_cotangents = {}
    for name in sample.outputs:
        shape, dtype = sample.shape(name), dtype_of(tool.op, name, token_dtype)
        random_cotangent = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        x = user_cotangents.get(name, random_cotangent)
        if tuple(x.shape) != shape or x.dtype != dtype:
            expected = f"{str(dtype).removeprefix('torch.')} {shape}, as {name}, was expected"
            raise tool.fail(
                f"cotangent {name!r} is {str(x.dtype).removeprefix('torch.')} {tuple(x.shape)} but {expected}"
            )
        all_cotangents[name] = x.detach().cpu()
    return all_cotangents


def _check_finite(tool: Tool, sample: Sample, tensors: Mapping[str, Tensor]) -> None:
    """Raises ArgumentError for NaN or infinity in a sequence: the reference has no value there. Slack may hold
    anything."""
    for name, x in tensors.items():
        tokens = role(sample.axes[name.removeprefix("cotangent ")]) == "token"
        bad = (~(x[: sample.offsets[-1]] if tokens else x).isfinite()).nonzero()
        if len(bad):
            index = bad[0].tolist()
            raise tool.fail(f"{name} is {float(x[tuple(index)])} at {index} but finite values were expected")
