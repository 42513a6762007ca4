"""`adapt`: the declaration of a kernel's calling convention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from packproof.adapters.adapter import CU_SEQLENS, Adapter, Declines
from packproof.adapters.conversions import Conversion
from packproof.adapters.declared import check_types, op_of, resolve_target, title_of
from packproof.adapters.function_name import calling_file
from packproof.adapters.metadata import Metadata
from packproof.adapters.pool_slots import PoolSlots
from packproof.adapters.tokens import Packed, Tokens
from packproof.base.declared import fixed_values, long_dtypes, require
from packproof.base.errors import checked_call
from packproof.properties.cases import Domain
from packproof.properties.declarations import DEFAULT_DTYPES, Promises, kernel
from packproof.properties.ops import OPS, Op


@checked_call
def adapt(
    target: str | Callable[..., Any],
    *,
    op: str | Op | None = None,
    tokens: Tokens = Packed(),  # noqa: B008
    keys: Tokens | None = None,
    slots: PoolSlots | None = None,
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
    dtypes: Sequence[str | torch.dtype] = DEFAULT_DTYPES,
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

    target: the kernel, or its name: "package.module:function", "path/file.py:function" or "hub:owner/kernel:function".
    A file is searched in the current folder, then in the folder of the calling file. A name is imported at the first
    call.
    op: the op of the kernel. None takes it from the kernel's own declaration, and imports the kernel at once.
    tokens: the layout of the tokens, in inputs along `t` and in outputs.
    keys: the layout of inputs along the op's second packing, such as `Pages(size=16)` of a cache. None: as `tokens`.
    slots: where the states of a pool lie: `PagedSlots(16)`, `NullSlot()` if its first slot belongs to no request,
    `SlotPerDraft()`, `DraftBuffer(...)` or `WindowBuffer(...)` of an op with drafts, None as in the op.
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
    target_function = resolve_target(target, caller_file=calling_file())
    resolved_op = op_of(target_function, op)
    require(declines is None or callable(declines), "adapt", "declines", declines, "a function, or None")
    require(promises is None or isinstance(promises, Promises), "adapt", "promises", promises, "a packproof.Promises")
    check_types(
        title_of(target_function),
        {"metadata": metadata, "names": names, "axes": axes, "converted": converted, "given": given},
        {"positional": positional, "without": without, "in_place": in_place},
    )
    fixed_options = fixed_values(f"adapt({title_of(target_function)})", fixed)
    adapter = Adapter(
        target_function,
        resolved_op,
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
        keys,
        slots,
    )
    adapter.check_declaration()
    dtype_names = long_dtypes(f"adapt({adapter.title})", dtypes)
    promises = adapter.with_operand_rounding(promises, dtype_names)
    Domain.of(domain).check(resolved_op, f"adapt({adapter.title})")
    mark = kernel(
        op=resolved_op.name if OPS.get(resolved_op.name) is resolved_op else resolved_op,
        promises=promises,
        gradients=gradients,
        dtypes=dtype_names,
        slack=slack,
        domain=domain,
        mixed=mixed,
        float32=float32,
        narrow=narrow,
        fixed=fixed,
        refuses=refuses,
    )
    return mark(adapter)
