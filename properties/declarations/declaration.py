"""The declaration of a kernel by its author: op, promises, dtypes and domain."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from packproof.base.declared import fixed_values, long_dtypes, require, require_bool, string_list
from packproof.base.errors import UsageError, checked_call
from packproof.properties.calling.pages import PagePlacement
from packproof.properties.calling.signature import call_signature, catches_all, named_metadata
from packproof.properties.cases.case import CUTS
from packproof.properties.cases.domain import KEY_OFFSETS, Domain, optional_inputs
from packproof.properties.declarations.promises import Promises
from packproof.properties.declarations.source_constants import MAX_CONSTANTS, source_constants
from packproof.properties.ops.op import Op
from packproof.properties.snippets.pasted_lines import PastedLines, advice
from packproof.properties.snippets.suggested_adapter import suggested_adapter

if TYPE_CHECKING:
    import torch

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_DTYPES = ("float32", "bfloat16", "float16")
_MARK = "__packproof__"
_OP = "__packproof_op__"
_NO_SLACK = "slack == 0"
_MAX_CONVENTIONS = 200
_BOUNDARY_ARGUMENTS = {"cu_seqlens_q", "seq_idx", "position_ids"}  # each tells a kernel where sequences end


@dataclass(frozen=True)
class Declaration:
    """The declaration of a kernel, and the names in its signature."""

    op: str | None = None
    """The name of the op; "" for an Op object of the user, None if not declared."""
    promises: Promises = field(default_factory=Promises)
    """The guarantees of the kernel's design."""
    gradients: bool = True
    """Whether it can be differentiated."""
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    """Supported dtypes of tokens."""
    parameters: tuple[str, ...] | None = None
    """The names of the arguments that it takes; None if it takes any."""
    required: tuple[str, ...] = ()
    """The arguments without a default."""
    catch_all: bool = False
    """Whether it takes further keyword arguments, and may ignore them.

    It then gets the op's required inputs, but no optional input or option without a parameter of its own.
    """
    domain: Domain = field(default_factory=Domain)
    """The supported calls."""
    mixed: bool = False
    """Whether inputs with the same alternative forms may have different ones in one call."""
    conventions: tuple[str, ...] = ()
    """Alternative conventions of its adapter, as texts."""
    page_sizes: tuple[int, ...] = ()
    """The rows of a page, where its keys or slots lie in the pages of a cache."""
    float32: tuple[str, ...] = ()
    """Inputs supported in fp32 beside bf16 or fp16 tokens."""
    narrow: tuple[str, ...] = ()
    """Inputs fixed to fp32 in the op and supported in 16 bits."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """The values of options fixed by the kernel, which has no argument for them."""
    own_parameters: tuple[str, ...] = ()
    """The names of the parameters that an nn.Module owns."""
    constants: tuple[int, ...] = ()
    """The integers in its source, in order (`source_constants`)."""
    by_author: bool = False
    """Whether its author declared it, with `packproof.kernel` or `adapt`."""

    @property
    def takes_cuts(self) -> bool:
        """Whether it takes cut positions, to cut packs over ranks of its own."""
        return CUTS in (self.parameters or ())

    def metadata(self, op: Op) -> tuple[str, ...]:
        """Its arguments made from `cu_seqlens` by their usual names. They are no arguments of the op."""
        if self.parameters is None:
            return ()
        parameters = {name: name in self.required for name in self.parameters}
        return named_metadata(parameters, (*op.inputs, *op.options))

    def omitted_metadata(self, op: Op) -> tuple[str, ...]:
        """Its arguments with usual names of metadata that are left at their defaults."""
        parameters = dict.fromkeys(self.parameters or (), True)
        known_names = (*op.inputs, *op.options, *self.metadata(op), *([KEY_OFFSETS] if op.packs_keys else []))
        return named_metadata(parameters, known_names)

    def restricted_to(self, domain: Domain) -> "Declaration":
        """The same with further conditions on the supported calls. They can exclude gradients and dtypes too."""
        combined = self.domain & domain
        return dataclasses.replace(
            self,
            domain=combined,
            gradients=self.gradients and combined.allows_gradients,
            dtypes=tuple(d for d in self.dtypes if combined.allows_dtype(d)),
        )


@checked_call
def kernel(
    *,
    op: str | Op | None = None,
    promises: Promises | None = None,
    gradients: bool = True,
    dtypes: "Sequence[str | torch.dtype]" = DEFAULT_DTYPES,
    slack: bool = True,
    domain: str | Sequence[str] = (),
    mixed: bool = False,
    float32: Sequence[str] = (),
    narrow: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
    refuses: Sequence[str] = (),
) -> Callable[[F], F]:
    """Declare a kernel, or a function around one. For another calling convention see `packproof.adapters.adapt`.

        @packproof.kernel(op="causal_conv1d", promises=packproof.Promises(grid="token", deterministic=True))
        def conv(x, weight, bias=None, *, cu_seqlens, activation=None):
            seq_idx = packproof.refs.seq_idx_from_cu_seqlens(cu_seqlens, x.shape[0])
            return my_conv(x.T[None], weight, bias, seq_idx=seq_idx[None], activation=activation)[0].T

    op: the name of an op of packproof, or an Op of your own. The function keeps the op's argument names. Optional
    arguments may be missing; they are not tested, and reported as not offered.
    promises: the guarantees of the kernel's design.
    gradients: whether it can be differentiated.
    dtypes: the supported dtypes of tokens, by long or short names, or torch's own.
    slack: whether it supports rows past the last sequence. False is the domain "slack == 0".
    domain: the supported calls, as conditions such as "k in (64, 128)" or "tokens % 16 == 0" (see `packproof.Domain`).
    The kernel is judged inside only. If none is declared, it is inferred from the refusals of the kernel's argument
    checks.
    mixed: whether inputs such as B and C of a scan, (t, n) or (t, g, n), may have different forms in one call.
    float32: the inputs, such as ["weight", "bias"], also supported in fp32 beside bf16 or fp16 tokens.
    narrow: the inputs, such as ["D", "dt_bias"], also supported in 16 bits, although the op has them in fp32.
    fixed: options fixed inside the function, such as {"causal": True}. It is judged with these values only.
    refuses: texts of exceptions, forward or backward. Raised anywhere, they decline a call.

    Raises UsageError for an invalid condition, and for an argument of another type.

    >>> import packproof
    >>> @packproof.kernel(op="rope", promises=packproof.Promises(grid="token"), domain="k % 2 == 0")
    ... def rope(x, cos, sin, *, cu_seqlens):
    ...     return packproof.refs.rope(x, cos, sin, cu_seqlens=cu_seqlens)
    """
    require(op is None or isinstance(op, str | Op), "kernel", "op", op, "the name of an op, or a packproof.Op")
    require(promises is None or isinstance(promises, Promises), "kernel", "promises", promises, "a packproof.Promises")
    for name, value in (("gradients", gradients), ("slack", slack), ("mixed", mixed)):
        require_bool("kernel", name, value)
    declaration_fields = {
        "op": "" if isinstance(op, Op) else op,
        "promises": dataclasses.asdict(promises or Promises()),
        "gradients": gradients,
        "dtypes": long_dtypes("kernel", dtypes),
        "domain": [*Domain.of(domain).texts, *([] if slack else [_NO_SLACK])],
        "mixed": mixed,
        "float32": string_list("kernel", "float32", float32, "float32=['weight', 'bias']"),
        "narrow": string_list("kernel", "narrow", narrow, "narrow=['D', 'dt_bias']"),
        "fixed": fixed_values("kernel", fixed),
        "refuses": string_list("kernel", "refuses", refuses, "refuses=['only supports width']"),
    }

    def mark(function: F) -> F:
        require(callable(function), "kernel", "what it declares", function, "a function")
        setattr(function, _MARK, declaration_fields)
        if isinstance(op, Op):
            setattr(function, _OP, op)
        return function

    return mark


def describe_kernel(function: Callable[..., Any]) -> dict[str, Any]:
    """The declaration and signature of a function, as JSON data. Runs in the kernel's process."""
    signature = call_signature(function)
    parameters = {n: p for n, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    adapter_conventions = getattr(function, "other_conventions", None)
    conventions = list(adapter_conventions) if isinstance(adapter_conventions, Mapping) else []
    return {
        "parameters": list(parameters),
        "required": [n for n, p in parameters.items() if p.default is p.empty],
        "catch_all": catches_all(signature),
        "declared": getattr(function, _MARK, {}),
        "conventions": [name for name in conventions if name != PagePlacement.SHARED],
        "page_sizes": list(getattr(function, "page_sizes", ())),
        "own_parameters": [name for name, _ in getattr(function, "named_parameters", tuple)()],
        "constants": source_constants(function),
    }


def declared_op(function: Callable[..., Any]) -> str | Op | None:
    """The declared op of a function: an Op, a name, or None."""
    return custom_op(function) or getattr(function, _MARK, {}).get("op") or None


def custom_op(target: Any) -> Op | None:
    """The user's Op declared for a target, or None. target: a function, or any object found by its name."""
    op = getattr(target, _OP, None)
    return op if isinstance(op, Op) else None


def refusal_texts(function: Callable[..., Any]) -> tuple[str, ...]:
    """Texts of the exceptions by which the function declines a call."""
    return tuple(getattr(function, _MARK, {}).get("refuses", ()))


def fixed_options(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The options declared as fixed, with their values."""
    fixed: Mapping[str, Any] = getattr(function, _MARK, {}).get("fixed", {})
    return fixed


def parse_declaration(description: dict[str, Any], target: str) -> Declaration:
    """Parse the JSON data of `describe_kernel`. Raises UsageError if the kernel's process sent something else."""
    options, names = description.get("declared") or {}, description.get("parameters")
    try:
        declaration = Declaration(
            op=options.get("op"),
            promises=Promises(**options.get("promises", {})),
            gradients=bool(options.get("gradients", True)),
            dtypes=tuple(str(d) for d in options.get("dtypes", DEFAULT_DTYPES)),
            mixed=options.get("mixed") is True,
            float32=tuple(str(n) for n in options.get("float32", ())),
            narrow=tuple(str(n) for n in options.get("narrow", ())),
            fixed=fixed_values(target, options.get("fixed")),
            parameters=None if names is None else tuple(str(n) for n in names),
            required=tuple(str(n) for n in description.get("required", ())),
            catch_all=description.get("catch_all") is True,
            own_parameters=tuple(str(n) for n in description.get("own_parameters", ())),
            constants=tuple(n for n in description.get("constants", ()) if type(n) is int)[:MAX_CONSTANTS],
            by_author=bool(options),
            conventions=tuple(str(words) for words in description.get("conventions", ()))[:_MAX_CONVENTIONS],
            page_sizes=tuple(size for size in description.get("page_sizes", ()) if type(size) is int and size > 0),
        )
        return declaration.restricted_to(Domain.of(options.get("domain", ())))
    except (TypeError, AttributeError) as error:
        raise UsageError(f"{target}: its declaration cannot be read ({error})") from None


def check_signature(op: Op, declaration: Declaration, target: str, pasted: PastedLines | None = None) -> None:
    """Raises UsageError unless the target takes the op's required inputs and its declaration fits the op.

    target: the kernel in messages.
    pasted: the kernel and its op in lines to paste.
    """
    _check_dtype_fields(op, declaration, target)
    _check_fixed_options(op, declaration, target)
    if declaration.parameters is not None:
        _check_parameters(op, declaration, declaration.parameters, target, pasted or PastedLines(target, op.name))


def _check_dtype_fields(op: Op, declaration: Declaration, target: str) -> None:
    """Raises UsageError if `float32` or `narrow` names an input that is fixed to one dtype in the op."""
    for field_name, names, allowed_names, description in (
        ("float32", declaration.float32, op.float32, "fp32 beside tokens"),
        ("narrow", declaration.narrow, op.narrow, "of 16 bits"),
    ):
        if unknown := [name for name in names if name not in allowed_names]:
            available = ", ".join(n for n in op.inputs if n in allowed_names) or "none"
            raise UsageError(
                f"{target}: {field_name} has {unknown[0]!r}; of {op.name} these may be {description}: {available}"
            )


def _check_fixed_options(op: Op, declaration: Declaration, target: str) -> None:
    """Raises UsageError if `fixed` names anything but options of the op, or an option that the kernel takes."""
    for name, value in declaration.fixed.items():
        if name not in op.options:
            raise UsageError(
                f"{target}: fixed has {name!r}, expected options of {op.name}: {', '.join(op.options) or 'it has none'}"
            )
        if name in (declaration.parameters or ()):
            raise UsageError(
                f"{target}: fixed has {name!r}, which it takes; for the calls that it supports declare "
                f"domain={f'{name} == {value!r}'!r}"
            )


def _check_parameters(
    op: Op, declaration: Declaration, parameters: tuple[str, ...], target: str, pasted: PastedLines
) -> None:
    """Raises UsageError if the kernel lacks a required argument of the op, or requires an argument that the op lacks.

    The message has lines to paste: a function that passes the parameters of an nn.Module, or else an adapter.
    """
    missing, unexpected = _signature_gaps(op, declaration)
    call_arguments = _call_arguments(op, declaration)
    adapter = partial(suggested_adapter, pasted, packs_keys=op.packs_keys)
    owned_inputs = {name: path for path in declaration.own_parameters if (name := path.rpartition(".")[2]) in op.inputs}
    if missing and not unexpected and owned_inputs.keys() >= {*missing}:
        arguments = [name for name in parameters if name in call_arguments]
        function = advice(pasted, pasted.functional_call(arguments, owned_inputs))
        raise UsageError(f"{target}: owns {', '.join(owned_inputs)}, which {op.name} is called with; {function}")
    if missing and not declaration.catch_all:
        optional = [n for n in parameters if n not in (*call_arguments, *declaration.required)]
        raise UsageError(
            f"{target}: takes ({', '.join(parameters) or 'nothing'}) but {op.name} is called with "
            f"{', '.join(_required_arguments(op, declaration))}; "
            f"{advice(pasted, adapter(missing, unexpected, optional))}"
        )
    if unexpected:
        raise UsageError(
            f"{target}: needs {', '.join(unexpected)}, which {op.name} does not have; give it a default, or "
            f"{advice(pasted, adapter([], unexpected))}"
        )


def fits(op: Op, declaration: Declaration) -> bool:
    """Whether the kernel names all required inputs of the op, and needs nothing else."""
    if declaration.parameters is None:
        return False
    missing, unexpected = _signature_gaps(op, declaration)
    return not unexpected and (not missing or (missing == ["cu_seqlens"] and declaration.catch_all))


def _signature_gaps(op: Op, declaration: Declaration) -> tuple[list[str], list[str]]:
    """The required arguments of the op that the kernel does not name, and those of the kernel that the op lacks."""
    call_arguments = _call_arguments(op, declaration)
    missing = [n for n in _required_arguments(op, declaration) if n not in (declaration.parameters or ())]
    return missing, [n for n in declaration.required if n not in call_arguments]


def _call_arguments(op: Op, declaration: Declaration) -> tuple[str, ...]:
    """Every argument that a call of the op may have."""
    return (*op.inputs, *op.options, "cu_seqlens", KEY_OFFSETS, CUTS, *declaration.metadata(op))


def _required_arguments(op: Op, declaration: Declaration) -> list[str]:
    has_boundaries = {*declaration.metadata(op)} & _BOUNDARY_ARGUMENTS
    return [*_required_inputs(op), *([] if has_boundaries else ["cu_seqlens"])]


def with_required_inputs(op: Op, declaration: Declaration) -> Declaration:
    """The same with the op's required inputs among the parameters, if the kernel has a catch-all for them."""
    if declaration.parameters is None or not declaration.catch_all:
        return declaration
    return dataclasses.replace(
        declaration, parameters=tuple(dict.fromkeys((*declaration.parameters, *_required_inputs(op))))
    )


def _required_inputs(op: Op) -> list[str]:
    return [n for n, spec in op.inputs.items() if not spec.endswith("?")]


def needed_inputs(op: Op, declaration: Declaration) -> Domain:
    """The calls with all optional inputs of the op that the kernel requires."""
    metadata_names = declaration.metadata(op)
    optional = [*optional_inputs(op), *([KEY_OFFSETS] if op.packs_keys and KEY_OFFSETS not in metadata_names else [])]
    return Domain.of([n for n in declaration.required if n in optional])
