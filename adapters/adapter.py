"""A kernel of another calling convention, called like packproof's own: its declaration holds the convention as data."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.conversions import Conversion, convert, extra_argument_names
from packproof.adapters.declared import title_of
from packproof.adapters.function_name import FunctionName
from packproof.adapters.kernel_signature import KernelSignature, required_inputs
from packproof.adapters.metadata import Metadata, OfKeys, PerToken, cu_seqlens, mask, once
from packproof.adapters.other_conventions import other_conventions
from packproof.adapters.pages import Pages, shares_pages, sharing_pages
from packproof.adapters.pool_slots import PagedSlots, PoolSlots
from packproof.adapters.tensor_axes import AxisOrder
from packproof.adapters.tokens import Tokens
from packproof.base.axes import has_key_rows, parse, role
from packproof.base.errors import UsageError
from packproof.properties.calling import PagePlacement
from packproof.properties.declarations import Promises
from packproof.properties.ops import Op

Declines = Callable[[Mapping[str, Any]], str | None]

CU_SEQLENS: Mapping[str, Metadata] = {"cu_seqlens": cu_seqlens}


@dataclass(eq=False)
class Adapter:
    """A kernel with packproof's calling convention. `adapt` makes it; the fields are its arguments."""

    target: FunctionName | Callable[..., Any]
    op: Op
    tokens: Tokens
    metadata: Mapping[str, Metadata]
    names: Mapping[str, str]
    given: Mapping[str, Any]
    without: frozenset[str]
    in_place: frozenset[str]
    declines: Declines | None
    axes: Mapping[str, str] = field(default_factory=dict)
    converted: Mapping[str, Conversion] = field(default_factory=dict)
    positional: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    keys: Tokens | None = None
    slots: PoolSlots | None = None

    def __post_init__(self) -> None:
        self.__qualname__ = self.__name__ = f"adapter of {self.title}"

    @property
    def title(self) -> str:
        """The kernel's name, for reports."""
        return title_of(self.target)

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """The rows of a page, of a kernel whose keys or slots lie in the pages of a cache; else ()."""
        if isinstance(self.slots, PagedSlots):
            return (self.slots.size,)
        return self.keys.sizes if isinstance(self.keys, Pages) else ()

    def __call__(
        self, *positional: Any, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None = None, **keyword_arguments: Any
    ) -> Any:
        """Compute the op. Raises NotImplementedError for a call that the kernel declines."""
        for name, value in self.fixed.items():
            if keyword_arguments.get(name, value) != value:
                raise NotImplementedError(
                    f"{self.title}: {name} is {keyword_arguments[name]!r}, and fixed at {value!r}"
                )
        arguments = {**self.fixed, **dict(zip(self.op.inputs, positional, strict=False)), **keyword_arguments}
        if self.declines and (reason := self.declines(arguments)):
            raise NotImplementedError(reason)
        inputs, more_arguments = self.kernel_inputs(arguments, cu_seqlens, cu_seqlens_k)
        more = more_arguments()
        signature, metadata = self.kernel_signature, self.metadata_values(arguments, cu_seqlens, cu_seqlens_k)
        kernel_arguments = {**signature.kernel_defaults, **inputs, **metadata, **self.given, **more}
        result = signature.function(
            *[kernel_arguments.pop(name) for name in signature.positional_arguments], **kernel_arguments
        )
        if self.slots:
            self.slots.check_unchanged(more, more_arguments())
        if result is None and self.in_place:
            result = tuple(inputs[self.kernel_name(n)] for n in self.op.inputs if n in self.in_place)
        elif self.updated_pools:
            outputs = result if isinstance(result, tuple | list) else (result,)
            updated = (inputs[self.kernel_name(states)] for states in self.updated_pools)
            result = (*outputs[: len(self.op.outputs) - len(self.updated_pools)], *updated)
        return self._outputs(result, arguments, cu_seqlens, self.row_counts(arguments)[0])

    def kernel_inputs(
        self, arguments: Mapping[str, Any], cu_seqlens: Tensor, cu_seqlens_k: Tensor | None
    ) -> tuple[dict[str, Any], Callable[[], Mapping[str, Any]]]:
        """The op's arguments as the kernel takes them, by its names; and what makes those of the pool's convention."""
        key_offsets = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
        signature = self.kernel_signature
        op_arguments = {**signature.op_defaults, **{n: x for n, x in arguments.items() if n in signature.op_arguments}}
        offsets = {n: key_offsets if self.is_per_key(n) else cu_seqlens for n in op_arguments}
        values = {n: self._convert(n, x, arguments, offsets[n]) for n, x in op_arguments.items()}
        inputs = {self.kernel_name(n): self._lay_out(n, x, offsets[n], arguments) for n, x in values.items()}
        if not self.slots or not self.op.pool:
            return inputs, dict
        indices, *pools = map(self.kernel_name, (self.op.pool[0], *self.op.pool[1::2]))
        accepted = next((arguments[n] for n in self.op.integers_drawn("accepted")), None)
        more_arguments = partial(self.slots.more_arguments, inputs[pools[0]], inputs[indices], accepted)
        inputs[indices] = self.slots.indices(inputs[indices], inputs[pools[0]].shape)
        inputs |= {pool: self.slots.to(inputs[pool]) for pool in pools}
        return inputs, more_arguments

    def metadata_values(
        self, arguments: Mapping[str, Any], cu_seqlens: Tensor, cu_seqlens_k: Tensor | None
    ) -> dict[str, Any]:
        """The kernel's arguments that are made of the offsets, by its names."""
        rows, key_rows = self.row_counts(arguments)
        key_offsets = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
        return {
            name: self._metadata_value(make.make, key_offsets, key_rows)
            if isinstance(make, OfKeys)
            else self._metadata_value(make, cu_seqlens, rows)
            for name, make in self.metadata.items()
        }

    def row_counts(self, arguments: Mapping[str, Any]) -> tuple[int, int]:
        """The rows of the pack, and those of its keys."""
        counts = {n: len(x) for n, x in arguments.items() if self.is_per_token(n) and x is not None}
        rows = next(count for n, count in counts.items() if not self.is_per_key(n))
        return rows, next((count for n, count in counts.items() if self.is_per_key(n)), rows)

    @property
    def updated_pools(self) -> list[str]:
        """The pools that the kernel overwrites."""
        return [states for states, _ in self.op.pools if states in self.in_place]

    def with_compiled_kernel(self, backend: str) -> "Adapter":
        """The same adapter around the compiled kernel. The layout of its tensors is not compiled with it."""
        return replace(self, target=torch.compile(self.function, backend=backend))

    @cached_property
    def other_conventions(self) -> Mapping[str, Callable[..., Any]]:
        """The same kernel with one part of the declaration changed, by the text of the change; and in shared pages."""
        declaration = (self.op, self.tokens, self.metadata, self.axes, self.converted)
        changed: dict[str, Callable[..., Any]] = {
            description: replace(self, target=self.function, **changed_fields)
            for description, changed_fields in other_conventions(*declaration)
        }
        return {**changed, PagePlacement.SHARED: self._in_shared_pages} if isinstance(self.keys, Pages) else changed

    def _in_shared_pages(self, *positional: Any, **keyword_arguments: Any) -> Any:
        with sharing_pages():
            return self(*positional, **keyword_arguments)

    @property
    def __signature__(self) -> inspect.Signature:
        """The supported arguments of the op. Raises UsageError if the kernel cannot be imported or called like this."""
        kind = inspect.Parameter.KEYWORD_ONLY
        key_arguments = ["cu_seqlens_k"] if any(isinstance(make, OfKeys) for make in self.metadata.values()) else []
        required_names = {
            *required_inputs(self.op),
            "cu_seqlens",
        }  # in calls without the others the kernel gets None, or its default
        defaults = {
            n: inspect.Parameter.empty if n in required_names else None
            for n in (*self._supported_arguments, "cu_seqlens", *key_arguments)
        }
        return inspect.Signature([inspect.Parameter(n, kind, default=x) for n, x in defaults.items()])

    def check_declaration(self) -> None:
        """Raises UsageError for a name unknown to the op, or for tokens of another type than `Tokens`."""
        op_arguments = [*self.op.inputs, *self.op.options]
        per_token_inputs = [n for n in self.op.inputs if self.is_per_token(n)]
        tensors = [*self.op.inputs, *self.op.outputs]
        kernel_arguments = [*map(self.kernel_name, op_arguments), *self.metadata, *self.given]
        checks = {
            "names": (self.names, op_arguments, "inputs and options of the op"),
            "without": (
                self.without,
                [n for n in op_arguments if n not in required_inputs(self.op)],
                "optional arguments of the op",
            ),
            "in_place": (
                self.in_place,
                [*per_token_inputs, *(self.op.pool or ())[1::2]],
                "inputs along the tokens" + (" or the pool" if self.op.pool else ""),
            ),
            "axes": (self.axes, tensors, "inputs and outputs of the op"),
            "converted": (self.converted, [*op_arguments, *self.op.outputs], "inputs, options and outputs of the op"),
            "positional": (self.positional, kernel_arguments, "arguments that are passed"),
        }
        for argument, (names, choices, description) in checks.items():
            for name in names:
                if name not in choices:
                    raise UsageError(
                        f"adapt({self.title}): {argument} has {name!r}, expected {description}: {', '.join(choices)}"
                    )
        if not isinstance(self.tokens, Tokens):
            raise UsageError(
                f"adapt({self.title}): tokens is {self.tokens!r}, expected Packed(), Batched(), Padded(), Gaps() or "
                "a Tokens of your own"
            )
        if self.keys is not None and not (isinstance(self.keys, Tokens) and self.op.packs_keys):
            raise UsageError(
                f"adapt({self.title}): keys is {self.keys!r}, expected Pages() or another layout, of an op whose keys "
                "have offsets of their own (axis u), or None"
            )
        if self.slots is not None and not (isinstance(self.slots, PoolSlots) and self.slots.fits(self.op)):
            raise UsageError(
                f"adapt({self.title}): slots is {self.slots!r}, expected SlotPerDraft() of an op whose pool holds the "
                "states of drafts, PagedSlots() of another op with a pool, NullSlot() of either, or None"
            )
        for name, make in self.metadata.items():
            if not callable(make):
                raise UsageError(
                    f"adapt({self.title}): metadata {name!r} is {make!r}, expected a function of cu_seqlens and the "
                    "number of rows; what is the same for every pack belongs in given"
                )
        for name, function in self.converted.items():
            context = f"adapt({self.title}): converted {name!r}"
            if not callable(function):
                raise UsageError(f"{context} is {function!r}, expected a function, such as base2_log or torch.sigmoid")
            for parameter in extra_argument_names(function, context):
                if parameter not in op_arguments:
                    raise UsageError(
                        f"{context} asks for {parameter!r}, expected arguments of the op: {', '.join(op_arguments)}"
                    )
        _ = self.axis_orders  # raises UsageError

    def with_operand_rounding(self, promises: Promises | None, dtypes: Sequence[str]) -> Promises | None:
        """The promises, with compute="operand" if a conversion rounds an input to the dtype of 16-bit tokens.

        Raises UsageError if the promises exclude this.
        """
        inputs = [n for n in self.converted if n not in (*self.op.options, *self.op.fixed)]
        if not inputs or not any("16" in dtype for dtype in dtypes):
            return promises
        promises = promises or Promises()
        if promises.compute not in (None, "operand"):
            raise UsageError(
                f"adapt({self.title}): promises has compute={promises.compute!r}, but {inputs[0]} is converted and "
                "then rounded to the dtype of the tokens, expected compute='operand', or fp32 and fp64 alone in dtypes"
            )
        return replace(promises, compute="operand")

    @cached_property
    def axis_orders(self) -> Mapping[str, AxisOrder]:
        """The declared axis orders, by tensor."""
        specs = {**self.op.inputs, **self.op.outputs}
        return {n: AxisOrder.from_spec(specs[n], text, self._error_context("axes", n)) for n, text in self.axes.items()}

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The adapted kernel, imported if need be."""
        return self.target.load() if isinstance(self.target, FunctionName) else self.target

    @cached_property
    def kernel_signature(self) -> KernelSignature:
        return KernelSignature(
            self.function,
            self.title,
            self.op,
            self.names,
            self.metadata,
            (*self.given, *(self.slots.more_names if self.slots else ())),
            self.without | self._replaced_inputs,
            self.positional,
        )

    @cached_property
    def _replaced_inputs(self) -> frozenset[str]:
        """The op's inputs that the convention of the pool takes, and not the kernel."""
        return self.slots.replaced_inputs(self.op) if self.slots else frozenset()

    @cached_property
    def _supported_arguments(self) -> tuple[str, ...]:
        """The op's arguments used by the kernel or by a conversion."""
        kernel_arguments = self.kernel_signature.op_arguments
        conversion_arguments = {
            argument for name in (*kernel_arguments, *self.op.outputs) for argument in self._conversion_arguments(name)
        }
        return tuple(
            n
            for n in (*self.op.inputs, *self.op.options)
            if n in kernel_arguments or n in (conversion_arguments | self._replaced_inputs) - self.without
        )

    def _error_context(self, argument: str, name: str) -> str:
        return f"adapt({self.title}): {argument} {name!r}"

    def _conversion_arguments(self, name: str) -> tuple[str, ...]:
        """Further arguments of the op needed to convert this one."""
        function = self.converted.get(name)
        return extra_argument_names(function, self._error_context("converted", name)) if function else ()

    def _convert(self, name: str, value: Any, arguments: Mapping[str, Any], cu_seqlens: Tensor) -> Any:
        """An input or option with the kernel's values, or an output with the op's."""
        function = self.converted.get(name)
        if function is None or (value is None and name not in self.op.options):
            return value
        default_options = {n: values[0] for n, values in self.op.options.items()}
        extra_arguments = {n: arguments.get(n, default_options.get(n)) for n in self._conversion_arguments(name)}
        if not isinstance(value, Tensor):
            return function(value, **extra_arguments)
        token_mask = None
        if self.is_per_token(name):
            rows = len(value)
            token_mask = once(("inside", rows), lambda: mask(cu_seqlens, rows), cu_seqlens)
        return convert(function, value, extra_arguments, token_mask, self._error_context("converted", name))

    def kernel_name(self, name: str) -> str:
        return self.names.get(name, name)

    def is_per_token(self, name: str) -> bool:
        spec = self.op.inputs.get(name) or self.op.outputs.get(name)
        return spec is not None and role(parse(spec).alternatives[0]) == "token"

    def is_per_key(self, name: str) -> bool:
        spec = self.op.inputs.get(name)
        return spec is not None and has_key_rows(parse(spec).alternatives[0])

    def _lay_out(self, name: str, value: Any, cu_seqlens: Tensor, arguments: Mapping[str, Any]) -> Any:
        if value is not None and name in self.axis_orders:
            value = self.axis_orders[name].to(value)
        if value is None or not (self.is_per_token(name) or name in self.in_place):
            return value
        layout = self.keys if self.keys is not None and self.is_per_key(name) else self.tokens
        outside = self.op.outside_value(name, arguments)
        laid_out = layout.to(value, cu_seqlens, outside) if self.is_per_token(name) else value
        return laid_out.clone() if name in self.in_place else laid_out

    def _metadata_value(self, make: Metadata, cu_seqlens: Tensor, rows: int) -> Any:
        def compute_value() -> Any:
            metadata = make(cu_seqlens, rows)
            return self.tokens.to(metadata, cu_seqlens, make.outside) if isinstance(make, PerToken) else metadata

        return once((make, self.tokens, rows, shares_pages()), compute_value, cu_seqlens)

    def _outputs(self, result: Any, arguments: Mapping[str, Any], cu_seqlens: Tensor, rows: int) -> Any:
        """The outputs of this call. A value of another type than a tensor stays unchanged; the check reports it."""
        output_names = self.op.output_names(arguments)
        results = tuple(result) if isinstance(result, tuple | list) else (result,)
        op_output = partial(self._op_output, arguments=arguments, cu_seqlens=cu_seqlens, rows=rows)
        outputs = tuple(
            self._with_copied_gradient(op_output(n, y)) for n, y in zip(output_names, results, strict=False)
        )
        return outputs if len(output_names) > 1 else outputs[0] if outputs else None

    def _op_output(self, name: str, y: Any, *, arguments: Mapping[str, Any], cu_seqlens: Tensor, rows: int) -> Any:
        """An output in the op's layout, axis order and values."""
        if not isinstance(y, Tensor):
            return y
        if self.is_per_token(name):
            y = self.tokens.back(y, cu_seqlens, rows)
        pool = {after: before for before, after in self.op.pools}.get(name)
        if self.slots and pool:
            y = self.slots.back(y, arguments[pool].shape)
        if name in self.axis_orders:
            y = self.axis_orders[name].back(y, self._error_context("axes", name))
        return self._convert(name, y, arguments, cu_seqlens)

    def _with_copied_gradient(self, y: Any) -> Any:
        """The output. A kernel that works in place gets a copy of its incoming gradient, which it may overwrite."""
        if self.in_place and isinstance(y, Tensor) and y.requires_grad:
            y.register_hook(torch.clone)  # type: ignore[no-untyped-call]
        return y
