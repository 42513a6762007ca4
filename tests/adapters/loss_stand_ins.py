"""Stand-ins for losses of third parties: their arguments in their order, the values of torch."""

# mypy: allow-untyped-defs

import torch
from torch.nn import functional


def _reduced(losses, target, ignore_index, reduction):
    total = losses.sum()
    return {"none": losses, "sum": total, "mean": total / (target != ignore_index).sum()}[reduction]


def _losses(logits, target, ignore_index, label_smoothing=0.0, lse_square_scale=0.0):
    losses = functional.cross_entropy(
        logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    return losses + lse_square_scale * torch.where(target == ignore_index, 0, logits.logsumexp(-1).square())


def liger_cross_entropy(
    logits, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean",
    label_smoothing=0.0, lse_square_scale=0.0,
):  # fmt: skip
    """It leaves its gradient where the logits were."""
    losses = _losses(logits, target, ignore_index, label_smoothing, lse_square_scale)
    logits.data.fill_(7)
    return _reduced(losses, target, ignore_index, reduction)


def liger_fused_linear_cross_entropy(
    x, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
    reduction="mean",
):  # fmt: skip
    losses = _losses(x @ weight.T, target, ignore_index, label_smoothing, lse_square_scale)
    return _reduced(losses, target, ignore_index, reduction)


def fla_cross_entropy_loss(
    logits, target, label_smoothing=0.0, logit_scale=1.0, lse_square_scale=0.0, logit_softcapping=None,
    ignore_index=-100,
):  # fmt: skip
    return _losses(logits, target, ignore_index, label_smoothing, lse_square_scale), None


def fla_fused_linear_cross_entropy_loss(x, target, weight, bias=None, ignore_index=-100, label_smoothing=0.0):
    return _reduced(_losses(x @ weight.T, target, ignore_index, label_smoothing), target, ignore_index, "mean")


def fla_fused_kl_div_loss(x, target_x, weight, target_weight, reduction="batchmean"):
    """KL of the teacher from the student, with the teacher's tensors second; none of the teacher requires gradients."""
    assert not target_x.requires_grad
    q, p = ((rows @ w.T).log_softmax(-1) for rows, w in ((x, weight), (target_x, target_weight)))
    return functional.kl_div(q, p, log_target=True, reduction=reduction)


def cut_linear_cross_entropy(
    e, c, targets, ignore_index=-100, softcap=None, reduction="mean", shift=False, filter_eps="high"
):
    assert filter_eps is None
    return _reduced(_losses(e @ c.T, targets, ignore_index), targets, ignore_index, reduction)


def quack_cross_entropy(x, target, lse_partial=None, weight=None, ignore_index=-100, reduction="mean"):
    return _reduced(_losses(x, target, ignore_index), target, ignore_index, reduction)


def quack_chunked_linear_cross_entropy(x, weight, target, chunk_size=4096, ignore_index=-100, reduction="mean"):
    return _reduced(_losses(x @ weight.T, target, ignore_index), target, ignore_index, reduction)


def parallel_cross_entropy(
    inp, target, label_smoothing=0.0, reduce_loss=False, dist_process_group=None, ignore_idx=-100,
    is_cg_capturable=False,
):  # fmt: skip
    assert inp.ndim == 3
    losses = _losses(inp.flatten(0, 1), target.flatten(), ignore_idx, label_smoothing)
    return _reduced(losses, target, ignore_idx, "mean") if reduce_loss else losses.view(target.shape)
