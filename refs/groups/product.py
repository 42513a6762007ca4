"""Grouped products of numbers with block scales (OCP MX 1.0, section 6.2), as experts in 8 and 4 bits compute them."""

from torch import Tensor

from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import SCALED_GROUPED_MM
from packproof.base.wording import plural
from packproof.refs.groups.experts import grouped_mm
from packproof.refs.recurrence import checked_arguments, join_sequences, split_sequences, to_compute_dtype


@checked_call
def scaled_grouped_mm(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    alpha: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    block_format: str = "mxfp4",
) -> Tensor:
    """y = α_j (x ⊙ X) (W_j ⊙ S_j) for the rows of each group j: X and S repeat each scale over its block.

    x: (t, d), numbers of the format in fp64, fp32, bf16 or fp16, which hold them exactly.
    x_scales: (t, b) in fp32 (fp64 for fp64 x), a scale for each d / b channels of a row.
    weight: (s, d, f), numbers of the format in x's dtype.
    weight_scales: (s, b, bf) in fp32 (fp64 for fp64 x), one for each d / b by f / bf numbers.
    alpha: (s,) in fp32 (fp64 for fp64 x), the product of both global scales of a group, as in NVFP4.
    cu_seqlens: int32 or int64 (s + 1,), the offsets of the groups.
    block_format: the format of numbers and scales, "mxfp4", "mxfp8", "nvfp4" or "fp8". Those of mxfp4 are numbers and
        scales of all. It does not change the product. The size of a block is d / b.

    Returns (t, f) in x's dtype, zero in slack; computes in fp32 for bf16 and fp16. Raises ArgumentError and
    LayoutError.

    >>> import torch
    >>> from packproof.refs import scaled_grouped_mm
    >>> x, ones = torch.ones(1, 4), torch.ones(1, 2, 1)
    >>> scaled_grouped_mm(x, torch.tensor([[1.0, 8.0]]), torch.ones(1, 4, 1), ones, cu_seqlens=torch.tensor([0, 1]))
    tensor([[18.]])
    """
    checked_arguments(SCALED_GROUPED_MM, locals())
    f, bf = weight.shape[2], weight_scales.shape[2]
    if bf < 1 or f % bf:
        raise ArgumentError(
            f"scaled_grouped_mm: weight has {plural(f, 'output channel')} (axis f) but weight_scales has "
            f"{plural(bf, 'block')} of them (axis bf); blocks of equal size were expected"
        )
    rows = to_compute_dtype(x) * x_scales.repeat_interleave(x.shape[1] // x_scales.shape[1], 1)
    matrices = to_compute_dtype(weight) * scales_of_elements(weight_scales, weight)
    y: Tensor = grouped_mm(rows, matrices, cu_seqlens=cu_seqlens)
    if alpha is not None:
        y = join_sequences([a * y_j for a, y_j in zip(alpha, split_sequences(y, cu_seqlens), strict=True)], y)
    return y.to(x.dtype)


def scales_of_elements(scales: Tensor, weight: Tensor) -> Tensor:
    """Scales (s, b, bf) repeated over their blocks, in the shape of the weight (s, d, f)."""
    for axis in (1, 2):
        scales = scales.repeat_interleave(weight.shape[axis] // scales.shape[axis], axis)
    return scales
