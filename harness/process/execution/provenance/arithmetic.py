"""Which operators of torch compute, and which only allocate, view, copy, cast or index.

An operator computes if one of its tensors is of a floating or complex type and has elements, unless it is listed here.
So whatever is done to offsets, positions and masks of integers is free.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import arg_tree_leaves

TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler", "inductor", "quantized", "mkldnn", "c10d"})
# operators that only move values, create tensors, or inspect their shape
DATA_MOVEMENT = frozenset(
    (  # noqa: SIM905
        "clone copy_ _to_copy contiguous cat stack constant_pad_nd index index_put index_put_ _unsafe_index gather "
        "index_select zero_ fill_ zeros_like empty_like ones_like full_like new_empty new_zeros new_ones new_full "
        "new_empty_strided empty_strided detach detach_ set_ resize_ slice_backward select_backward lift_fresh "
        "split_with_sizes_copy repeat where masked_fill slice_scatter select_scatter"
    ).split()
)
_MORE_MOVEMENT = frozenset(
    (  # noqa: SIM905
        "zero fill pad masked_fill_ masked_select masked_scatter masked_scatter_ flip roll repeat_interleave take "
        "nonzero scatter scatter_ index_fill index_fill_ index_copy index_copy_ diagonal_scatter as_strided_scatter "
        "unbind_copy expand_copy view_copy tril tril_ triu triu_ _local_scalar_dense is_same_size record_stream "
        "pin_memory _pin_memory resize_as_ rand_like randn_like equal alias_copy split_copy "
        "embedding _unsafe_view _reshape_copy lift _index_put_impl_ copy detach_copy slice_copy select_copy "
        "squeeze_copy unsqueeze_copy"
    ).split()
)
_REDUCTIONS = ("accumulate", "reduce")  # arguments by which a scatter adds what it moves


def computes(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator of torch computes with floating-point values, in a call with these arguments."""
    return has_floats(args, kwargs) and changes_values(op, args, kwargs)


def changes_values(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator of torch does more than to allocate, view, copy, cast or index, in such a call."""
    if op.is_view:
        return False
    moves = op.overloadpacket.__name__ in DATA_MOVEMENT | _MORE_MOVEMENT
    return not moves or any(_argument(op, name, args, kwargs) for name in _REDUCTIONS)


def has_floats(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether one of the arguments is a tensor of floating-point or complex values with elements."""
    tensors = (x for x in arg_tree_leaves(*args, **kwargs) if isinstance(x, Tensor))
    return any(x.numel() and (x.is_floating_point() or x.is_complex()) for x in tensors)


def _argument(op: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The value of an argument of an operator, None if it has none of this name."""
    if name in kwargs:
        return kwargs[name]
    position = next((n for n, argument in enumerate(op._schema.arguments) if argument.name == name), len(args))
    return args[position] if position < len(args) else None
