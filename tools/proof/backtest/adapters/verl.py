"""verl: rows for Megatron from a batch of nested sequences."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


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
