"""Fused policy losses as targets: an op on logits, and the GRPO kernels of liger-kernel and flash-linear-attention.

packproof check examples/losses/policy_losses.py:liger --dtype fp32
packproof check examples/losses/policy_losses.py:fla --dtype fp32

The loss of a token is that of `packproof.refs.policy_loss`, of the log-probability that its logits give to its label.
Both libraries take a batch of padded responses whose logits have one row more than the response has tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

import packproof
from packproof.adapters import Padded, adapt
from packproof.refs import join_sequences, split_sequences


def policy_losses(
    logits: Tensor,
    labels: Tensor,
    ref_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    old_logprobs: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    beta: float = 0.04,
    clip: float = 0.2,
) -> Tensor:
    """The reference: logits (t, n), advantages (s,), the others (t,). Returns (t,), 0 for a token that does not count.

    Without old_logprobs the ratio is 1, with the gradient of the log-probability.
    """
    logprobs = logits.log_softmax(-1).gather(-1, labels.long()[:, None])[:, 0]
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    # selected before the exponential: a token of a prompt may have any log-probability, and 0 * inf is NaN
    changes = (torch.where(mask != 0, x, 0) for x in (logprobs - old, ref_logprobs - logprobs))
    losses = []
    for change, distance, counts, advantage in zip(
        *(split_sequences(x, cu_seqlens) for x in (*changes, mask)), advantages, strict=True
    ):
        ratio = torch.exp(change)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        losses.append(torch.where(counts != 0, beta * (torch.exp(distance) - distance - 1) - gain, 0))
    return join_sequences(losses, logprobs)


POLICY_LOSSES = packproof.Op(
    name="policy_losses",
    reference=policy_losses,
    inputs={
        "logits": "t n",
        "labels": "t",
        "ref_logprobs": "t",
        "advantages": "s",
        "mask": "t",
        "old_logprobs": "t?",
    },
    outputs={"losses": "t"},
    options={"beta": (0.04, 0.0), "clip": (0.2, 0.1)},
    sizes=({"n": 5}, {"n": 130}),
    draws={"logits": "choice", "labels": "id|n", "mask": "mask", "ref_logprobs": "logprob", "old_logprobs": "logprob"},
    constants=frozenset({"labels", "ref_logprobs", "advantages", "mask", "old_logprobs"}),
    fixed=frozenset({"losses", "ref_logprobs", "old_logprobs", "advantages"}),
    causal=False,
)


def _liger(logits, labels, ref_logprobs, advantages, mask, old_logprobs=None, beta=0.04, clip=0.2):
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss  # noqa: PLC0415

    bounds = {"beta": beta, "eps_low": clip, "eps_high": clip}
    inputs = (pad(logits, (0, 0, 0, 1)), old_logprobs, ref_logprobs, labels.long(), advantages, mask)
    return triton_grpo_loss(*inputs, **bounds, temperature=1.0, inplace=False, loss_type="grpo")[0]


def _fla(logits, labels, ref_logprobs, advantages, mask, beta=0.04):
    """Its ratio is 1: it takes no log-probabilities of an older policy."""
    from fla.modules.grpo import fused_grpo_loss  # noqa: PLC0415

    inputs = (pad(logits, (0, 0, 0, 1)), ref_logprobs, labels.long(), advantages)
    return fused_grpo_loss(*inputs, beta=beta, completion_mask=mask)


_CALL = {"op": POLICY_LOSSES, "tokens": Padded(), "metadata": {}, "slack": False, "domain": "tokens > 0"}
liger = adapt(_liger, **_CALL)
fla = adapt(_fla, **_CALL)
