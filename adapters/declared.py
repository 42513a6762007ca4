"""Reads the declaration of an adapter before any call: its kernel, its op, and the types of the arguments."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packproof.adapters.function_name import EXPECTED_TARGET, FunctionName
from packproof.base.declared import require, require_mapping
from packproof.base.errors import UsageError
from packproof.properties.declarations import declared_op
from packproof.properties.ops import OPS, Op, find_op

_EXPECTED_DICTS = {  # after "a dict"
    "metadata": "of functions by the kernel's argument, such as {'seq_idx': seq_idx}",
    "names": "of the kernel's names by the op's, such as {'x': 'hidden'}",
    "axes": "of axes by the op's tensor, such as {'final_states': 's v k'}",
    "converted": "of functions by the op's argument, such as {'g': base2_log}",
    "given": "of values by the kernel's argument, such as {'chunk_size': 64}",
}
_EXPECTED_LISTS = {
    "positional": "the kernel's arguments in order, such as ('x', 'weight', 'bias')",
    "without": "a tuple of names, such as ('initial_states',)",
    "in_place": "a tuple of names, such as ('q', 'k')",
}


def title_of(target: FunctionName | Callable[..., Any]) -> str:
    """The kernel's name, for reports."""
    return target.text if isinstance(target, FunctionName) else str(getattr(target, "__qualname__", repr(target)))


def resolve_target(target: str | Callable[..., Any], caller_file: str | None) -> FunctionName | Callable[..., Any]:
    """The kernel, or its parsed name.

    caller_file: a source file is searched in the folder of this file too.
    Raises UsageError.
    """
    if isinstance(target, str):
        return FunctionName.parse(target, Path(caller_file).resolve().parent if caller_file else None)
    require(callable(target), "adapt", "target", target, EXPECTED_TARGET)
    return target


def op_of(target: FunctionName | Callable[..., Any], op: str | Op | None) -> Op:
    """The given op, or else the op declared by the kernel. Raises UsageError."""
    context = f"adapt({title_of(target)})"
    if op is None:
        op = declared_op(target.load() if isinstance(target, FunctionName) else target)
        if op is None:
            raise UsageError(
                f"{context}: op is None, and the kernel is declared with none; name one: {', '.join(OPS)}, or pass a "
                "packproof.Op"
            )
    require(isinstance(op, str | Op), context, "op", op, "the name of an op, or a packproof.Op")
    return find_op(op) if isinstance(op, str) else op


def check_types(title: str, mappings: Mapping[str, Any], name_lists: Mapping[str, Any]) -> None:
    """Raises UsageError unless the mappings are None or dicts by name, and the others lists of names."""
    for name, value in mappings.items():
        if value is not None:
            require_mapping(f"adapt({title})", name, value, _EXPECTED_DICTS[name])
    for name, value in name_lists.items():
        list_types = list | tuple if name == "positional" else list | tuple | set | frozenset
        is_name_list = isinstance(value, list_types) and all(isinstance(item, str) for item in value)
        require(is_name_list, f"adapt({title})", name, value, _EXPECTED_LISTS[name])
