"""verl: rows for Megatron from a batch of nested sequences."""

import inspect
import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from packproof.proof.backtest.adapters.training.stand_ins import stand_in
from packproof.properties.declarations import kernel
from packproof.properties.ops import Op


def _one_rank() -> None:
    """Megatron's groups, of one rank, and its parameters of a pack."""
    megatron, core = ModuleType("megatron"), ModuleType("megatron.core")
    state, params = ModuleType("megatron.core.parallel_state"), ModuleType("megatron.core.packed_seq_params")
    for name in ("tensor_model_parallel_world_size", "context_parallel_world_size"):
        setattr(state, f"get_{name}", lambda: 1)
    state.get_context_parallel_rank = lambda: 0  # type: ignore[attr-defined]
    params.PackedSeqParams = SimpleNamespace  # type: ignore[attr-defined]
    core.parallel_state, core.packed_seq_params = state, params  # type: ignore[attr-defined]
    megatron.core = core  # type: ignore[attr-defined]
    sys.modules |= {module.__name__: module for module in (megatron, core, state, params)}


class NestedRows:
    def __init__(self) -> None:
        _one_rank()
        from verl.models.mcore import util  # type: ignore[import-not-found]  # noqa: PLC0415

        self._preprocess = util.preprocess_packed_seqs_no_padding

    def __call__(self, documents: list[dict[str, list[int]]]) -> dict[str, Any]:
        rows = [torch.tensor(document["input_ids"], dtype=torch.long) for document in documents]
        nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        ids, pack = self._preprocess(nested, pre_process=True)
        return {"input_ids": ids, "cu_seqlens": pack.cu_seqlens_q, "max_seqlen": int(pack.max_seqlen_q)}


def _mean(log_probs: Tensor, mask: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The mean of minus log_probs over the tokens of the mask; 0 if there is none."""
    n = int(cu_seqlens[-1])
    counts = mask[:n] != 0
    return -torch.where(counts, log_probs[:n], 0).sum() / max(int(counts.sum()), 1)


MEAN = Op(
    name="mean_of_log_probs",
    reference=_mean,
    inputs={"log_probs": "t", "mask": "t"},
    outputs={"loss": ""},
    sizes=({},),
    draws={"mask": "mask"},
    constants=frozenset({"mask"}),
    fixed=frozenset({"loss"}),
    causal=False,
    reductions={"loss": "mean over tokens"},
    counted="mask",
)


@kernel(op=MEAN, slack=False)
def sft_loss(log_probs: Tensor, mask: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The loss of a batch in micro batches of one sequence, as the engine accumulates it.

    Where the loss of a micro batch is a mean, the engine weights it by its share of the sequences.
    """
    losses = _losses()
    is_mean = "batch_num_tokens" not in inspect.getsource(losses.sft_loss)
    pieces = [slice(*ends) for ends in pairwise(cu_seqlens.tolist()) if ends[0] < ends[1]]
    total = log_probs.sum() * 0
    for piece in pieces:
        # the mask of a token counts the log-probability in the row before, and the last row predicts nothing
        rows = torch.nn.functional.pad(log_probs[piece], (0, 1)), torch.nn.functional.pad(mask[piece], (1, 0))
        nested_probs, nested_mask = (torch.nested.nested_tensor_from_jagged(x, _one(x)) for x in rows)
        data = {"loss_mask": nested_mask, "dp_size": 1, "batch_num_tokens": max(int(mask.sum()), 1)}
        loss, _ = losses.sft_loss(None, {"log_probs": nested_probs}, data)
        total = total + (loss / len(pieces) if is_mean else loss)
    return total


def _one(x: Tensor) -> Tensor:
    """The offsets of one sequence."""
    return torch.tensor([0, len(x)])


def _losses() -> Any:
    stand_in("tensordict")
    from verl.workers.roles.utils import losses  # type: ignore[import-not-found]  # noqa: PLC0415

    return losses
