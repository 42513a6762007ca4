"""Replacements in Triton, and in packproof's repair of it, while programs run in a batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as shipped

from packproof.interpreter import operators, scan, types
from packproof.interpreter.batch import blocks, plain, pointers, reductions, rewrite, shadow
from packproof.interpreter.batch.programs import programs
from packproof.interpreter.patch import replace
from packproof.interpreter.types import core

Replacement = tuple[Any, str, Any, Any]  # owner, name, original, the one of a batch

_batch_replacements: list[Replacement] = []
_shadows: list[shadow.Shadow] = []


def collect_replacements() -> None:
    """Collect the replacements. Call it after the repair of the interpreter. Raises PackproofError if this Triton lacks
    a name.
    """
    if _batch_replacements:
        return
    for owner, name, make in _replacements():
        original = replace(owner, name, make)
        _batch_replacements.append((owner, name, original, owner.__dict__[name]))
        setattr(owner, name, original)
    for module in (libdevice, cuda_libdevice):  # a hundred functions: replaced once for all, not for each batch
        for name, member in vars(module).items():
            if getattr(member, "__name__", "") == "elementwise":
                replace(module, name, _only_in_batches(blocks.call_per_program))


@contextmanager
def batch_mode(memory: shadow.Shadow) -> Iterator[None]:
    """Run all programs of a batch together, in a with block. memory: the shadow state that watches them."""
    _shadows.append(memory)
    # save the current values, not the originals of `collect_replacements`: a sanitizer may have replaced some
    saved = [(owner, name, owner.__dict__[name]) for owner, name, _, _ in _batch_replacements]
    try:
        for owner, name, _, replacement in _batch_replacements:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in saved:
            setattr(owner, name, original)
        _shadows.pop()


def _replacements() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    builder, semantic, tensor = shipped.InterpreterBuilder, TritonSemantic, core.tensor
    for name, operation in blocks.BUILDER_METHODS.items():
        yield builder, name, _always(operation)
    yield builder, "create_masked_load", _always(shadow.load(_current_shadow))
    yield builder, "create_masked_store", _always(shadow.store(_current_shadow))
    if hasattr(shipped, "BlockPointerHandle"):  # until triton 3.7
        yield builder, "create_advance", _always(pointers.advance)
        yield shipped.BlockPointerHandle, "materialize_pointers", _always(pointers.materialise)
    yield shipped.TensorDescHandle, "materialize_pointers", _always(pointers.materialise_descriptor)
    yield shipped.TensorDescHandle, "validate", _always(pointers.validate)
    yield types, "broadcast", _always(blocks.broadcast)
    yield semantic, "expand_dims", _always(blocks.expand_dims)
    yield operators, "operand_values", blocks.operand_values
    yield tensor, "__add__", blocks.add_pointer_offsets
    yield tensor, "__getitem__", blocks.index_axes
    yield tensor, "__index__", _always(blocks.index)
    yield tensor, "__bool__", _always(blocks.truth)
    yield tensor, "T", _always(property(blocks.transpose))
    for language in (tl, core):
        yield language, "where", blocks.where_blocks
        yield language, "load", plain.load(_current_shadow)
        yield language, "store", plain.store(_current_shadow)
    yield shipped.ReduceOps, "apply_impl", reductions.apply_reduce
    yield shipped.ReduceOps, "generic_reduce", _always(reductions.generic_reduce)
    yield shipped.ReduceScanOpInterface, "to_tensor", _always(reductions.to_tensor)
    yield shipped.ScanOps, "apply_impl", _always(reductions.apply_scan)
    yield scan, "block", _always(reductions.block)
    yield shipped.InterpretedFunction, "__call__", _always(_call_device_function)


def _current_shadow() -> shadow.Shadow:
    return _shadows[-1]


def _only_in_batches(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        replacement = make(original)

        @wraps(original)
        def either(*args: Any, **kwargs: Any) -> Any:
            return (replacement if _shadows else original)(*args, **kwargs)

        return either

    return wrap


def _always(operation: Any) -> Callable[[Any], Any]:
    return lambda original: operation


def _call_device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
    saved = programs.active, programs.in_function, programs.has_returned
    programs.in_function, programs.has_returned = programs.active, None
    try:
        return rewrite.batch_function(self.fn)(*args, **kwargs)
    finally:
        programs.active, programs.in_function, programs.has_returned = saved
