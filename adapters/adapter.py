"""Adapters: a kernel with a calling convention of its own, declared as data and called as packproof calls kernels."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.metadata import Metadata, PerToken, cu_seqlens, once
from packproof.adapters.tokens import Packed, Tokens
from packproof.properties.cases.domain import Domain
from packproof.properties.declaration import DEFAULT_DTYPES, kernel
from packproof.properties.declared import long_dtypes, require, require_mapping
from packproof.properties.op import Op
from packproof.properties.ops import OPS, find_op
from packproof.properties.promises import Promises
from packproof.refs.axes import parse, role
from packproof.refs.errors import UsageError

Declines = Callable[[Mapping[str, Any]], str | None]

CU_SEQLENS: Mapping[str, Metadata] = {"cu_seqlens": cu_seqlens}


def adapt(
    target: str | Callable[..., Any],
    *,
    op: str | Op,
    tokens: Tokens = Packed(),  # noqa: B008
    metadata: Mapping[str, Metadata] = CU_SEQLENS,
    names: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
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
) -> "Adapter":
    """Declare how a kernel is called; returns a function that takes the op's arguments, to be checked and timed.

        conv = adapt(
            "causal_conv1d:causal_conv1d_fn",
            op="causal_conv1d",
            tokens=Batched(axis=-1),
            metadata={"seq_idx": seq_idx},
            without=("initial_states", "return_final_states"),
        )

    target: the kernel, or "package.module:function", imported at the first call. All arguments are passed by keyword.
    tokens: where the tokens lie in its inputs along `t` and in its outputs.
    metadata: by the kernel's argument names, functions of `cu_seqlens` and the rows of the pack. names: the kernel's
    names of the op's inputs and options, where they differ. given: other arguments, such as a chunk size.
    without: optional inputs and options of the op that the kernel names but does not support for packs. It is not
    tested with these, nor with those that it does not name, and reports list them.
    in_place: inputs that it overwrites: it gets copies, and copies of incoming gradients. If it returns None, they hold
    its results.
    declines: the reason why it does not support a call, from the op's arguments, or None. refuses: texts of the
    exceptions with which it refuses a call. A call that is declined is not judged, and reports count it.
    domain: the calls that it supports, as data. Prefer it to `declines` for what is known before a call, since cases
    are then drawn inside it. promises, gradients, dtypes, slack, domain, mixed, float32: as in
    `packproof.kernel`.

    The first values that the kernel returns are the op's outputs, in the op's order; the rest is ignored.
    Raises UsageError for an invalid declaration; for one that does not fit the kernel's signature, at the first call.

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
    _check_types(target, op, metadata, names, given, declines, promises)
    declared = find_op(op) if isinstance(op, str) else op
    adapter = Adapter(
        target,
        declared,
        tokens,
        dict(metadata),
        dict(names or {}),
        dict(given or {}),
        frozenset(without),
        frozenset(in_place),
        declines,
    )
    adapter.check_declaration()
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
        refuses=refuses,
    )
    return mark(adapter)


def _check_types(
    target: Any, op: Any, metadata: Any, names: Any, given: Any, declines: Any, promises: Promises | None
) -> None:
    named = isinstance(target, str) and all(target.partition(":"))
    require(named or callable(target), "adapt", "target", target, "a function or package.module:function")
    require(isinstance(op, str | Op), "adapt", "op", op, "the name of an op, or a packproof.Op")
    require_mapping(
        "adapt", "metadata", metadata, "of functions by the kernel's argument, such as {'seq_idx': seq_idx}"
    )
    require_mapping("adapt", "names", names or {}, "of the kernel's names by the op's, such as {'x': 'hidden'}")
    require_mapping("adapt", "given", given or {}, "of values by the kernel's argument, such as {'chunk_size': 64}")
    require(declines is None or callable(declines), "adapt", "declines", declines, "a function, or None")
    require(promises is None or isinstance(promises, Promises), "adapt", "promises", promises, "a packproof.Promises")


@dataclass(eq=False)
class Adapter:
    """A kernel with packproof's calling convention; made by `adapt`, which documents the fields."""

    target: str | Callable[..., Any]
    op: Op
    tokens: Tokens
    metadata: Mapping[str, Metadata]
    names: Mapping[str, str]
    given: Mapping[str, Any]
    without: frozenset[str]
    in_place: frozenset[str]
    declines: Declines | None

    def __post_init__(self) -> None:
        self.__qualname__ = self.__name__ = f"adapter of {self.title}"

    @property
    def title(self) -> str:
        """The kernel's name, for reports."""
        return self.target if isinstance(self.target, str) else getattr(self.target, "__qualname__", repr(self.target))

    def __call__(self, *positional: Any, cu_seqlens: Tensor, **named: Any) -> Any:
        """The op, as packproof calls it. Raises NotImplementedError for a call that the kernel declines."""
        arguments = {**dict(zip(self.op.inputs, positional, strict=False)), **named}
        if self.declines and (reason := self.declines(arguments)):
            raise NotImplementedError(reason)
        rows = next(len(x) for n, x in arguments.items() if self._per_token(n) and x is not None)
        theirs = {self._theirs(n): self._laid_out(n, x, cu_seqlens) for n, x in arguments.items() if n in self._taken}
        made = {name: self._made(make, cu_seqlens, rows) for name, make in self.metadata.items()}
        returned = self._function(**theirs, **made, **self.given)
        if returned is None and self.in_place:
            returned = tuple(theirs[self._theirs(n)] for n in self.op.inputs if n in self.in_place)
        return self._outputs(returned, arguments, cu_seqlens, rows)

    def compiled(self, backend: str) -> "Adapter":
        """The same adapter around the compiled kernel: laying out its tensors is not part of the kernel."""
        return replace(self, target=torch.compile(self._function, backend=backend))

    @property
    def __signature__(self) -> inspect.Signature:
        """The op's arguments that it takes. Raises UsageError if the kernel cannot be imported or called like this."""
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature([inspect.Parameter(n, kind) for n in (*self._taken, "cu_seqlens")])

    def check_declaration(self) -> None:
        """Raises UsageError for a name that the op does not have, or tokens that are not a convention."""
        known = [*self.op.inputs, *self.op.options]
        tokens = [n for n in self.op.inputs if self._per_token(n)]
        expected = {
            "names": (self.names, known, "inputs and options of the op"),
            "without": (self.without, [n for n in known if n not in self._required], "optional arguments of the op"),
            "in_place": (self.in_place, tokens, "inputs along the tokens"),
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

    @property
    def _required(self) -> frozenset[str]:
        """The inputs that every call of the op has."""
        return frozenset(n for n, spec in self.op.inputs.items() if not parse(spec).optional)

    @cached_property
    def _function(self) -> Callable[..., Any]:
        if not isinstance(self.target, str):
            return self.target
        module, _, path = self.target.partition(":")
        if not module or not path:
            raise UsageError(f"adapt: target is {self.target!r}, expected a function or package.module:function")
        try:
            found = import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"adapt({self.title}): it cannot be imported here: {error}") from error
        return found  # type: ignore[return-value]

    @cached_property
    def _taken(self) -> tuple[str, ...]:
        """The op's inputs and options that the kernel takes."""
        parameters = self._parameters()
        opened = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._check_signature(parameters, opened)
        wanted = [*self.op.inputs, *self.op.options]
        declared = {*self._required, *self.names} if opened else self._required
        return tuple(n for n in wanted if (self._theirs(n) in parameters or n in declared) and n not in self.without)

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self._function).parameters
        except ValueError:  # a builtin without a signature
            return {"others": inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD)}

    def _check_signature(self, parameters: Mapping[str, inspect.Parameter], opened: bool) -> None:
        """Raises UsageError unless the op provides what the kernel needs, and the kernel takes what it is given."""
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        own = {n: p for n, p in parameters.items() if p.kind not in variadic}
        sources = {
            **{self._theirs(n): f"the op's {n}" for n in {*self._required, *self.names} if n not in self.without},
            **dict.fromkeys(self.metadata, "in metadata"),
            **dict.fromkeys(self.given, "in given"),
        }
        has = ", ".join(parameters) or "nothing"
        for name, source in sources.items():
            if name not in own and not opened:
                raise UsageError(
                    f"adapt({self.title}): the adapter passes {name!r} ({source}), but the kernel takes ({has}); map "
                    "the op's arguments to the kernel's in names, and declare others in metadata and given"
                )
        fillable = {*sources, *(self._theirs(n) for n in (*self.op.inputs, *self.op.options))}
        for name, parameter in own.items():
            if parameter.default is parameter.empty and name not in fillable:
                raise UsageError(
                    f"adapt({self.title}): the kernel requires {name!r}, which is not passed to it; declare it in "
                    f"names, metadata or given, such as given={{{name!r}: ...}}"
                )

    def _theirs(self, name: str) -> str:
        return self.names.get(name, name)

    def _per_token(self, name: str) -> bool:
        spec = self.op.inputs.get(name) or self.op.outputs.get(name)
        return spec is not None and role(parse(spec).alternatives[0]) == "token"

    def _laid_out(self, name: str, value: Any, cu_seqlens: Tensor) -> Any:
        if value is None or not self._per_token(name):
            return value
        x = self.tokens.to(value, cu_seqlens)
        return x.clone() if name in self.in_place else x

    def _made(self, make: Metadata, cu_seqlens: Tensor, rows: int) -> Any:
        def prepared() -> Any:
            value = make(cu_seqlens, rows)
            return self.tokens.to(value, cu_seqlens, make.outside) if isinstance(make, PerToken) else value

        return once((make, self.tokens, rows), prepared, cu_seqlens)

    def _outputs(self, returned: Any, arguments: Mapping[str, Any], cu_seqlens: Tensor, rows: int) -> Any:
        """The outputs that this call has. What is not a tensor is returned unchanged, and the check reports it."""
        state = self.op.carry
        with_state = state is not None and bool(arguments.get(state[2]))
        wanted = [n for n, spec in self.op.outputs.items() if with_state or not parse(spec).optional]
        several = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        back = partial(self.tokens.back, cu_seqlens=cu_seqlens, tokens=rows)
        outputs = tuple(
            self._released(back(y) if self._per_token(n) and isinstance(y, Tensor) else y)
            for n, y in zip(wanted, several, strict=False)
        )
        return outputs if len(wanted) > 1 else outputs[0] if outputs else None

    def _released(self, y: Any) -> Any:
        """The output, with a copy of its incoming gradient for a kernel that overwrites it."""
        if self.in_place and isinstance(y, Tensor) and y.requires_grad:
            y.register_hook(torch.clone)  # type: ignore[no-untyped-call]
        return y
