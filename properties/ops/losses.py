"""The declarations of packproof's losses: over the vocabulary, of policies, and of routers."""

from dataclasses import replace
from typing import Any

from packproof import refs
from packproof.base import signatures
from packproof.properties.ops.op import Op
from packproof.properties.ops.signature_op import op_of_signature
from packproof.refs.losses.vocabulary import tokens_that_count

_VOCABULARY: dict[str, Any] = {
    "sizes": ({"nv": 5}, {"nv": 3}, {"nv": 130}, {"nv": 8}),
    "model_sizes": ({"nv": 1031},),
    "causal": False,  # with `shift` a loss reads the next label
}
_CROSS_ENTROPY: dict[str, Any] = {
    **_VOCABULARY,
    "options": {"ignore_index": (-100, 0), "label_smoothing": (0.0, 0.1), "z_loss": (0.0, 0.01)},
    "draws": {"labels": "label|nv"},
    "counted": tokens_that_count,
}
CROSS_ENTROPY = op_of_signature(
    signatures.CROSS_ENTROPY,
    reference=refs.cross_entropy,
    reductions={"loss": "mean over tokens"},
    **_CROSS_ENTROPY,
)
CROSS_ENTROPY_SUM = op_of_signature(
    signatures.CROSS_ENTROPY_SUM, reference=refs.cross_entropy_sum, reductions={"loss": "sum"}, **_CROSS_ENTROPY
)
CROSS_ENTROPY_SEQUENCES = op_of_signature(
    signatures.CROSS_ENTROPY_SEQUENCES, reference=refs.cross_entropy_sequences, **_CROSS_ENTROPY
)
LINEAR_CROSS_ENTROPY = op_of_signature(
    signatures.LINEAR_CROSS_ENTROPY,
    reference=refs.linear_cross_entropy,
    reductions={"loss": "mean over tokens"},
    matmul=True,
    **{
        **_CROSS_ENTROPY,
        "sizes": ({"nv": 5, "d": 3}, {"nv": 3, "d": 8}, {"nv": 130, "d": 4}, {"nv": 8, "d": 17}),
        "model_sizes": ({"nv": 1031, "d": 64},),
    },
)
TOKEN_LOGPROBS = op_of_signature(
    signatures.TOKEN_LOGPROBS,
    reference=refs.token_logprobs,
    options={"ignore_index": (-100, 0)},
    draws={"labels": "label|nv"},
    **_VOCABULARY,
)
TOKEN_ENTROPY = op_of_signature(signatures.TOKEN_ENTROPY, reference=refs.token_entropy, **_VOCABULARY)
KL_DIVERGENCE = op_of_signature(signatures.KL_DIVERGENCE, reference=refs.kl_divergence, **_VOCABULARY)
MULTI_TOKEN_CROSS_ENTROPY = op_of_signature(
    signatures.MULTI_TOKEN_CROSS_ENTROPY,
    reference=refs.multi_token_cross_entropy,
    options={"ignore_index": (-100, 0)},
    draws={"labels": "label|nv"},
    reductions={"losses": "sum"},
    sizes=({"h": 2, "nv": 5}, {"h": 1, "nv": 3}, {"h": 3, "nv": 130}, {"h": 4, "nv": 8}),
    model_sizes=({"h": 2, "nv": 1031},),
    causal=False,  # a head reads a later label
)

_LOGPROBS = {**dict.fromkeys(("logprobs", "ref_logprobs"), "logprob"), "mask": "mask"}
_RESPONSES: dict[str, Any] = {"sizes": ({},), "causal": False}
_POLICY: dict[str, Any] = {
    **_RESPONSES,
    "draws": {**_LOGPROBS, "old_logprobs": "logprob"},
    "options": {"clip_low": (0.2, 0.1), "clip_high": (0.2, 0.28), "beta": (0.0, 0.04)},
    "counted": "mask",
}
POLICY_LOSS = op_of_signature(
    signatures.POLICY_LOSS, reference=refs.policy_loss, reductions={"loss": "mean over tokens"}, **_POLICY
)
POLICY_LOSS_SEQUENCES = op_of_signature(
    signatures.POLICY_LOSS_SEQUENCES,
    reference=refs.policy_loss_sequences,
    reductions={"loss": "mean over sequences"},
    **_POLICY,
)
DPO_LOSS = op_of_signature(
    signatures.DPO_LOSS,
    reference=refs.dpo_loss,
    draws={**_LOGPROBS, "chosen_lengths": "split"},
    options={"beta": (0.1, 0.5), "label_smoothing": (0.0, 0.1)},
    **_RESPONSES,
)

_EXPERTS: dict[str, Any] = {
    "sizes": ({"e": 4}, {"e": 2}, {"e": 9}, {"e": 64}),
    "model_sizes": ({"e": 256},),
    "causal": False,
}
_CHOICES: dict[str, Any] = {"options": {"top": (2, 1)}, "draws": {"logits": "choice", "mask": "mask"}}
_ROUTER_LOAD = op_of_signature(
    signatures.ROUTER_LOAD,
    reference=refs.router_load,
    reductions={"load": "sum"},
    counted="mask",
    **_CHOICES,
    **_EXPERTS,
)
ROUTER_LOAD = replace(_ROUTER_LOAD, constants=frozenset(_ROUTER_LOAD.inputs))  # a choice has no gradient
ROUTER_BALANCE_LOSS_PACK = op_of_signature(
    signatures.ROUTER_BALANCE_LOSS_PACK,
    reference=refs.router_balance_loss_pack,
    draws={"logits": "choice", "load": "share", "mask": "mask"},
    reductions={"loss": "mean over tokens"},
    counted="mask",
    **_EXPERTS,
)
ROUTER_BALANCE_LOSS_SEQUENCES = op_of_signature(
    signatures.ROUTER_BALANCE_LOSS_SEQUENCES,
    reference=refs.router_balance_loss_sequences,
    **_CHOICES,
    **_EXPERTS,
)
ROUTER_Z_LOSS = op_of_signature(
    signatures.ROUTER_Z_LOSS,
    reference=refs.router_z_loss,
    draws={"mask": "mask"},
    reductions={"loss": "mean over tokens"},
    counted="mask",
    **_EXPERTS,
)

LOSSES: tuple[Op, ...] = (
    *(CROSS_ENTROPY, CROSS_ENTROPY_SUM, CROSS_ENTROPY_SEQUENCES, LINEAR_CROSS_ENTROPY),
    *(TOKEN_LOGPROBS, TOKEN_ENTROPY, KL_DIVERGENCE, MULTI_TOKEN_CROSS_ENTROPY),
    *(POLICY_LOSS, POLICY_LOSS_SEQUENCES, DPO_LOSS),
    *(ROUTER_LOAD, ROUTER_BALANCE_LOSS_PACK, ROUTER_BALANCE_LOSS_SEQUENCES, ROUTER_Z_LOSS),
)
