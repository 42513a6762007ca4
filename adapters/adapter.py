"""Adapters declare the calling convention of a kernel as data. packproof then calls it like its own kernels."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.conversions import Conversion, convert, others_named
from packproof.adapters.declared import check_types, named_function, op_of, title_of
from packproof.adapters.importing import FunctionName, calling_file
from packproof.adapters.kernel_signature import KernelSignature, required
from packproof.adapters.metadata import Metadata, OfKeys, PerToken, cu_seqlens, mask, once
from packproof.adapters.other_conventions import other_conventions
from packproof.adapters.tensor_axes import AxisOrder
from packproof.adapters.tokens import Packed, Tokens
from packproof.properties.cases.domain import Domain
from packproof.properties.declaration import DEFAULT_DTYPES, kernel
from packproof.properties.declared import fixed_values, long_dtypes, require
from packproof.properties.op import Op
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.refs.axes import packs_keys, parse, role
from packproof.refs.errors import UsageError, checked_call

Declines = Callable[[Mapping[str, Any]], str | None]

CU_SEQLENS: Mapping[str, Metadata] = {"cu_seqlens": cu_seqlens}


@checked_call
def adapt(
    target: str | Callable[..., Any],
    *,
    op: str | Op | None = None,
    tokens: Tokens = Packed(),  # noqa: B008
    metadata: Mapping[str, Metadata] = CU_SEQLENS,
    names: Mapping[str, str] | None = None,
    axes: Mapping[str, str] | None = None,
    converted: Mapping[str, Conversion] | None = None,
    given: Mapping[str, Any] | None = None,
    positional: Sequence[str] = (),
    without: Sequence[str] = (),
    in_place: Sequence[str] = (),
    declines: Declines | None = None,
    refuses: Sequence[str] = (),
    promises: Promises | None = None,
    gradients: bool = True,
    dtypes: Sequence[str] = DEFAULT_DTYPES,
    slack: bool = True,
    domain: str | Sequence[str] = (),
    mixed: bool = False,
    float32: Sequence[str] = (),
    narrow: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
) -> "Adapter":
    """Declare how a kernel is called. Returns a function of the op's arguments, to be checked and timed.

        conv = adapt(
            "causal_conv1d:causal_conv1d_fn",
            op="causal_conv1d",
            tokens=Batched(axis=-1),
            metadata={"seq_idx": seq_idx},
            without=("initial_states", "return_final_states"),
        )

    target: the kernel, or its name: "package.module:function" or "path/file.py:function". A file is searched in the
    current folder, then in the folder of the calling file. A name is imported at the first call.
    op: the op of the kernel. None takes it from the kernel's own declaration, and imports the kernel at once.
    tokens: the layout of the tokens, in inputs along `t` and in outputs.
    metadata: functions of `cu_seqlens` and the number of rows, by the kernel's argument names. `OfKeys` of such a
    function describes the op's second packing.
    names: the kernel's names of the op's inputs and options, where they differ.
    axes: the kernel's order of the axes of inputs and outputs, by the op's names: {"final_states": "s v k"}.
    converted: differentiable functions by the op's names, such as {"g": base2_log}. For an input or option the function
    makes the kernel's value of the op's; for an output it makes the op's value of the kernel's. Further parameters of a
    function receive the op's arguments of the same names.
    given: other arguments of the kernel, the same for every pack, such as a chunk size.
    positional: the kernel's positional arguments, in order; all others are passed by keyword.
    without: optional inputs and options of the op that the kernel names but does not support for packs. They are not
    tested. Neither are optional arguments that the kernel does not name. Reports list both.
    in_place: inputs that the kernel overwrites. It gets copies of them and of incoming gradients. If it returns None,
    these copies are its outputs. An updated pool of states belongs here: the copy is the pool after the call.
    declines: a function of the op's arguments. Returns the reason why the kernel does not support the call, or None.
    refuses: texts of the exceptions by which the kernel refuses a call.
    domain: the supported calls, as data. Prefer it to `declines` for conditions known before a call: cases are then
    drawn inside it.
    promises, gradients, dtypes, slack, mixed, float32, narrow, fixed: as in `packproof.kernel`. The kernel's own
    argument for a fixed option belongs in `given`.

    An optional argument of the op that the kernel requires is always passed: None if absent, or the plainest option.
    A declined or refused call is not judged, and reports count it.
    The first values returned by the kernel are the op's outputs, in the op's order; the rest is ignored.
    Raises UsageError for an invalid declaration. A mismatch with the kernel's signature is raised at the first call.

    >>> import torch
    >>> from packproof import adapters, refs
    >>> def rotated(hidden, cos, sin, offsets):  # hidden: (1, t, h, k)
    ...     return refs.rope(hidden[0], cos, sin, cu_seqlens=offsets)[None]
    >>> rope = adapters.adapt(
    ...     rotated,
    ...     op="rope",
    ...     tokens=adapters.Batched(),
    ...     metadata={"offsets": adapters.cu_seqlens_int64},
    ...     names={"x": "hidden"},
    ... )
    >>> x, cos, sin = torch.ones(3, 1, 2), torch.ones(2, 1), torch.zeros(2, 1)
    >>> rope(x, cos, sin, cu_seqlens=torch.tensor([0, 2, 3])).shape
    torch.Size([3, 1, 2])
    """
    named = named_function(target, beside=calling_file())
    declared = op_of(named, op)
    require(declines is None or callable(declines), "adapt", "declines", declines, "a function, or None")
    require(promises is None or isinstance(promises, Promises), "adapt", "promises", promises, "a packproof.Promises")
    check_types(
        title_of(named),
        {"metadata": metadata, "names": names, "axes": axes, "converted": converted, "given": given},
        {"positional": positional, "without": without, "in_place": in_place},
    )
    fixed_options = fixed_values(f"adapt({title_of(named)})", fixed)
    adapter = Adapter(
        named,
        declared,
        tokens,
        dict(metadata),
        dict(names or {}),
        dict(given or {}),
        frozenset({*without, *fixed_options}),
        frozenset(in_place),
        declines,
        dict(axes or {}),
        dict(converted or {}),
        tuple(positional),
        fixed_options,
    )
    adapter.check_declaration()
    promises = adapter.rounding(promises, dtypes)
    Domain.of(domain).check(declared, f"adapt({adapter.title})")
    mark = kernel(
        op=declared.name if OPS.get(declared.name) is declared else declared,
        promises=promises,
        gradients=gradients,
        dtypes=long_dtypes(f"adapt({adapter.title})", dtypes),
        slack=slack,
        domain=domain,
        mixed=mixed,
        float32=float32,
        narrow=narrow,
        fixed=fixed,
        refuses=refuses,
    )
    return mark(adapter)


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

    def __post_init__(self) -> None:
        self.__qualname__ = self.__name__ = f"adapter of {self.title}"

    @property
    def title(self) -> str:
        """The kernel's name, for reports."""
        return title_of(self.target)

    def __call__(self, *positional: Any, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None = None, **named: Any) -> Any:
        """Compute the op. Raises NotImplementedError for a call that the kernel declines."""
        for name, value in self.fixed.items():
            if named.get(name, value) != value:
                raise NotImplementedError(f"{self.title}: {name} is {named[name]!r}, and fixed at {value!r}")
        arguments = {**self.fixed, **dict(zip(self.op.inputs, positional, strict=False)), **named}
        if self.declines and (reason := self.declines(arguments)):
            raise NotImplementedError(reason)
        keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
        tokens = {n: len(x) for n, x in arguments.items() if self._per_token(n) and x is not None}
        rows = next(count for n, count in tokens.items() if not self._per_key(n))
        first = cu_seqlens, rows
        second = keys, next((count for n, count in tokens.items() if self._per_key(n)), rows)
        kernel = self._signature
        known = {**kernel.filled, **{n: x for n, x in arguments.items() if n in kernel.taken}}
        offsets = {n: keys if self._per_key(n) else cu_seqlens for n in known}
        values = {n: self._convert(n, x, arguments, offsets[n]) for n, x in known.items()}
        theirs = {self._theirs(n): self._laid_out(n, x, offsets[n]) for n, x in values.items()}
        made = {
            name: self._made(make.make, *second) if isinstance(make, OfKeys) else self._made(make, *first)
            for name, make in self.metadata.items()
        }
        passed = {**kernel.defaults, **theirs, **made, **self.given}
        returned = kernel.function(*[passed.pop(name) for name in kernel.by_position], **passed)
        if returned is None and self.in_place:
            returned = tuple(theirs[self._theirs(n)] for n in self.op.inputs if n in self.in_place)
        elif self.op.pool and self.op.pool[1] in self.in_place:
            others = returned if isinstance(returned, tuple | list) else (returned,)
            returned = (*others[: len(self.op.outputs) - 1], theirs[self._theirs(self.op.pool[1])])
        return self._outputs(returned, arguments, cu_seqlens, rows)

    def compiled(self, backend: str) -> "Adapter":
        """The same adapter around the compiled kernel. The layout of its tensors is not compiled with it."""
        return replace(self, target=torch.compile(self._function, backend=backend))

    @cached_property
    def other_conventions(self) -> Mapping[str, "Adapter"]:
        """The same kernel with one part of the declaration changed, by the text of the change."""
        declared = (self.op, self.tokens, self.metadata, self.axes, self.converted)
        return {words: replace(self, target=self._function, **change) for words, change in other_conventions(*declared)}

    @property
    def __signature__(self) -> inspect.Signature:
        """The supported arguments of the op. Raises UsageError if the kernel cannot be imported or called like this."""
        kind = inspect.Parameter.KEYWORD_ONLY
        keys = ["cu_seqlens_k"] if any(isinstance(make, OfKeys) for make in self.metadata.values()) else []
        needed = {*required(self.op), "cu_seqlens"}  # in calls without the others the kernel gets None, or its default
        defaults = {n: inspect.Parameter.empty if n in needed else None for n in (*self._offered, "cu_seqlens", *keys)}
        return inspect.Signature([inspect.Parameter(n, kind, default=x) for n, x in defaults.items()])

    def check_declaration(self) -> None:
        """Raises UsageError for a name unknown to the op, or for tokens of another type than `Tokens`."""
        known = [*self.op.inputs, *self.op.options]
        tokens = [n for n in self.op.inputs if self._per_token(n)]
        tensors = [*self.op.inputs, *self.op.outputs]
        passed = [*map(self._theirs, known), *self.metadata, *self.given]
        expected = {
            "names": (self.names, known, "inputs and options of the op"),
            "without": (self.without, [n for n in known if n not in required(self.op)], "optional arguments of the op"),
            "in_place": (
                self.in_place,
                [*tokens, *(self.op.pool or ())[1:2]],
                "inputs along the tokens" + (" or the pool" if self.op.pool else ""),
            ),
            "axes": (self.axes, tensors, "inputs and outputs of the op"),
            "converted": (self.converted, [*known, *self.op.outputs], "inputs, options and outputs of the op"),
            "positional": (self.positional, passed, "arguments that are passed"),
        }
        for argument, (names, known_names, what) in expected.items():
            for name in names:
                if name not in known_names:
                    raise UsageError(
                        f"adapt({self.title}): {argument} has {name!r}, expected {what}: {', '.join(known_names)}"
                    )
        if not isinstance(self.tokens, Tokens):
            raise UsageError(
                f"adapt({self.title}): tokens is {self.tokens!r}, expected Packed(), Batched(), Padded(), Gaps() or "
                "a Tokens of your own"
            )
        for name, make in self.metadata.items():
            if not callable(make):
                raise UsageError(
                    f"adapt({self.title}): metadata {name!r} is {make!r}, expected a function of cu_seqlens and the "
                    "number of rows; what is the same for every pack belongs in given"
                )
        for name, function in self.converted.items():
            where = f"adapt({self.title}): converted {name!r}"
            if not callable(function):
                raise UsageError(f"{where} is {function!r}, expected a function, such as base2_log or torch.sigmoid")
            for other in others_named(function, where):
                if other not in known:
                    raise UsageError(f"{where} asks for {other!r}, expected arguments of the op: {', '.join(known)}")
        _ = self._orders  # raises UsageError

    def rounding(self, promises: Promises | None, dtypes: Sequence[str]) -> Promises | None:
        """The promises, with compute="operand" if a conversion rounds an input to the dtype of 16-bit tokens.

        Raises UsageError if the promises exclude this.
        """
        rounded = [n for n in self.converted if n not in (*self.op.options, *self.op.fixed)]
        if not rounded or not any("16" in dtype for dtype in dtypes):
            return promises
        promises = promises or Promises()
        if promises.compute not in (None, "operand"):
            raise UsageError(
                f"adapt({self.title}): promises has compute={promises.compute!r}, but {rounded[0]} is converted and "
                "then rounded to the dtype of the tokens, expected compute='operand', or fp32 and fp64 alone in dtypes"
            )
        return replace(promises, compute="operand")

    @cached_property
    def _orders(self) -> Mapping[str, AxisOrder]:
        """The declared axis orders, by tensor."""
        specs = {**self.op.inputs, **self.op.outputs}
        return {n: AxisOrder.of(specs[n], text, self._where("axes", n)) for n, text in self.axes.items()}

    @cached_property
    def _function(self) -> Callable[..., Any]:
        return self.target.load() if isinstance(self.target, FunctionName) else self.target

    @cached_property
    def _signature(self) -> KernelSignature:
        return KernelSignature(
            self._function,
            self.title,
            self.op,
            self.names,
            self.metadata,
            self.given,
            self.without,
            self.positional,
        )

    @cached_property
    def _offered(self) -> tuple[str, ...]:
        """The op's arguments used by the kernel or by a conversion."""
        taken = self._signature.taken
        asked = {other for name in (*taken, *self.op.outputs) for other in self._asked(name)}
        return tuple(n for n in (*self.op.inputs, *self.op.options) if n in taken or n in asked - self.without)

    def _where(self, argument: str, name: str) -> str:
        return f"adapt({self.title}): {argument} {name!r}"

    def _asked(self, name: str) -> tuple[str, ...]:
        """Further arguments of the op needed to convert this one."""
        function = self.converted.get(name)
        return others_named(function, self._where("converted", name)) if function else ()

    def _convert(self, name: str, value: Any, arguments: Mapping[str, Any], cu_seqlens: Tensor) -> Any:
        """An input or option with the kernel's values, or an output with the op's."""
        function = self.converted.get(name)
        if function is None or (value is None and name not in self.op.options):
            return value
        plain = {n: values[0] for n, values in self.op.options.items()}
        others = {n: arguments.get(n, plain.get(n)) for n in self._asked(name)}
        if not isinstance(value, Tensor):
            return function(value, **others)
        rows = len(value)
        inside = once(("inside", rows), lambda: mask(cu_seqlens, rows), cu_seqlens) if self._per_token(name) else None
        return convert(function, value, others, inside, self._where("converted", name))

    def _theirs(self, name: str) -> str:
        return self.names.get(name, name)

    def _per_token(self, name: str) -> bool:
        spec = self.op.inputs.get(name) or self.op.outputs.get(name)
        return spec is not None and role(parse(spec).alternatives[0]) == "token"

    def _per_key(self, name: str) -> bool:
        spec = self.op.inputs.get(name)
        return spec is not None and packs_keys(parse(spec).alternatives[0])

    def _laid_out(self, name: str, value: Any, cu_seqlens: Tensor) -> Any:
        if value is not None and name in self._orders:
            value = self._orders[name].to(value)
        if value is None or not (self._per_token(name) or name in self.in_place):
            return value
        x = self.tokens.to(value, cu_seqlens) if self._per_token(name) else value
        return x.clone() if name in self.in_place else x

    def _made(self, make: Metadata, cu_seqlens: Tensor, rows: int) -> Any:
        def prepared() -> Any:
            value = make(cu_seqlens, rows)
            return self.tokens.to(value, cu_seqlens, make.outside) if isinstance(make, PerToken) else value

        return once((make, self.tokens, rows), prepared, cu_seqlens)

    def _outputs(self, returned: Any, arguments: Mapping[str, Any], cu_seqlens: Tensor, rows: int) -> Any:
        """The outputs of this call. A value of another type than a tensor stays unchanged; the check reports it."""
        wanted = self.op.returned(arguments)
        several = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        back = partial(self._back, arguments=arguments, cu_seqlens=cu_seqlens, rows=rows)
        outputs = tuple(self._released(back(n, y)) for n, y in zip(wanted, several, strict=False))
        return outputs if len(wanted) > 1 else outputs[0] if outputs else None

    def _back(self, name: str, y: Any, *, arguments: Mapping[str, Any], cu_seqlens: Tensor, rows: int) -> Any:
        """An output in the op's layout, axis order and values."""
        if not isinstance(y, Tensor):
            return y
        if self._per_token(name):
            y = self.tokens.back(y, cu_seqlens, rows)
        if name in self._orders:
            y = self._orders[name].back(y, self._where("axes", name))
        return self._convert(name, y, arguments, cu_seqlens)

    def _released(self, y: Any) -> Any:
        """The output. A kernel that works in place gets a copy of its incoming gradient, which it may overwrite."""
        if self.in_place and isinstance(y, Tensor) and y.requires_grad:
            y.register_hook(torch.clone)  # type: ignore[no-untyped-call]
        return y
