"""The signature of a kernel: a function, an nn.Module, or an operator registered with torch."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from packproof.base.errors import UsageError
from packproof.properties.calling.catch_all import read_catch_all

_UNKNOWN_SIGNATURE = inspect.Signature([inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)])

OFFSETS = ("cu_seqlens", "cu_seqlens_q")
_METADATA = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen", "max_seqlen_q", "max_seqlen_k", "seq_idx", "position_ids")


def call_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The names, kinds and defaults of its arguments. For a builtin without a signature: a catch-all alone.

    Names that a function reads from its **kwargs are arguments like those in its signature.
    Raises UsageError for an operator with several overloads and no default one.
    """
    operator = operator_of(inspect.unwrap(function))
    if operator is not None:
        return inspect.Signature(list(_schema_parameters(operator._schema)))
    function = getattr(function, "_orig_mod", function)  # an nn.Module inside the wrapper of torch.compile
    if _is_apply(function):
        return _signature_of_apply(getattr(function, "__self__", None))
    forward = None if isinstance(function, type) else getattr(function, "forward", None)  # of an nn.Module
    function = forward if callable(forward) else function
    try:
        return _with_names_of_catch_all(function, inspect.signature(function))
    except (TypeError, ValueError):
        return _UNKNOWN_SIGNATURE


def _with_names_of_catch_all(function: Callable[..., Any], signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    if not parameters or parameters[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    catch_all = read_catch_all(function, parameters[-1].name)
    names = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if required else None)
        for name, required in catch_all.names.items()
        if name.isidentifier() and name not in signature.parameters
    ]
    return signature.replace(parameters=[*parameters[:-1], *names, *(parameters[-1:] if catch_all.passed_on else [])])


def _is_apply(function: Callable[..., Any]) -> bool:
    """Whether it is `apply` of a torch.autograd.Function."""
    owner = getattr(function, "__self__", None)
    return isinstance(owner, type) and hasattr(owner, "setup_context") and getattr(function, "__name__", "") == "apply"


def _signature_of_apply(owner: Any) -> inspect.Signature:
    """That of `forward`, by position, without its `ctx`. As keywords, `apply` would take tensors without gradients."""
    parameters = list(inspect.signature(owner.forward).parameters.values())
    has_ctx = owner.setup_context.__module__ == "torch.autograd.function"  # not its own: `forward` saves what it needs
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature(
        [
            p.replace(kind=inspect.Parameter.POSITIONAL_ONLY) if p.kind in by_position else p
            for p in parameters[has_ctx:]
        ]
    )


def catches_all(signature: inspect.Signature) -> bool:
    """Whether it takes arbitrary keyword arguments."""
    return any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())


def named_metadata(parameters: Mapping[str, bool], op_arguments: Collection[str]) -> tuple[str, ...]:
    """The parameters to be made from `cu_seqlens`, by their usual names.

    A parameter with a default is left to the kernel, with two exceptions. Lengths are always passed, as by every caller
    of such kernels. All are passed if the kernel takes no offsets, since it has no boundaries otherwise.

    parameters: whether each is required, by name.
    op_arguments: the names of the op's own arguments.
    """
    without_offsets = not any(name in parameters for name in OFFSETS)

    def is_passed(name: str) -> bool:
        replaces_offsets = name == "cu_seqlens_q" and "cu_seqlens" not in parameters
        return parameters[name] or name.startswith("max_seqlen") or replaces_offsets or without_offsets

    return tuple(n for n in _METADATA if n in parameters and n not in op_arguments and is_passed(n))


def operator_of(function: Any) -> Any:
    """The operator, such as torch.ops.mylib.conv.default, of an operator or a result of `torch.library.custom_op`.

    None for anything else. Raises UsageError as in `call_signature`.
    """
    kind = f"{type(function).__module__}.{type(function).__qualname__}"
    if kind == "torch._library.custom_ops.CustomOpDef":
        return function._opoverload
    if kind == "torch._ops.OpOverload":
        return function
    if kind != "torch._ops.OpOverloadPacket":
        return None
    overloads = function.overloads()
    if "default" not in overloads and len(overloads) != 1:
        overload_names = ", ".join(overloads)
        raise UsageError(f"{function} has the overloads {overload_names}, and none is the default; name one of them")
    return getattr(function, "default" if "default" in overloads else overloads[0])


def _schema_parameters(schema: Any) -> Iterator[inspect.Parameter]:
    for argument in schema.arguments:
        yield inspect.Parameter(
            argument.name,
            inspect.Parameter.KEYWORD_ONLY,  # positional ones too: in a schema, a default may come first
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
        )
