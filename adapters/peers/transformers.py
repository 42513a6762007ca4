"""transformers: the gated delta rule of Qwen3-Next in plain torch. Models use it if fla is not installed.

It takes no boundaries, so each sequence is a separate call. Key heads are not shared by value heads: the model repeats
them before the call.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.properties.declarations import Promises, kernel

_MODEL = "transformers.models.qwen3_next.modeling_qwen3_next"


def _rule_adapter(function: str, promises: Promises | None = None) -> Callable[..., Any]:
    """The adapter of one of its functions. If fla is installed, transformers wraps a kernel around it."""
    # with decays as differences of a running sum, a strong gate costs all later ones their digits
    gate_condition = "; gate > -1e4" if promises and promises.cumsum else ""

    @kernel(
        op="gated_delta_rule", domain=f"hk == hv{gate_condition}", promises=promises, slack=False, float32=("g", "beta")
    )
    def call_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_states: Tensor | None = None, *,
        cu_seqlens: Tensor, qk_l2norm: bool = False, return_final_states: bool = False,
    ) -> Any:  # fmt: skip
        rule = inspect.unwrap(getattr(import_module(_MODEL), function))
        ys, states = [v[:0]], [v.new_zeros(0, v.shape[1], k.shape[2], v.shape[2], dtype=torch.float32)]
        for j, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
            y, state = rule(
                *(x[start:end].unsqueeze(0) for x in (q, k, v)),
                g=g[start:end].unsqueeze(0),
                beta=beta[start:end].unsqueeze(0),
                initial_state=None if initial_states is None else initial_states[j : j + 1],
                output_final_state=True,
                use_qk_l2norm_in_kernel=qk_l2norm,
            )
            ys.append(y.squeeze(0))
            states.append(state)
        y = torch.cat(ys)
        return (y, torch.cat(states)) if return_final_states else y

    return call_rule


gated_delta_rule = _rule_adapter("torch_chunk_gated_delta_rule", Promises(grid="sequence", chunk=64, cumsum=True))
gated_delta_rule_recurrent = _rule_adapter("torch_recurrent_gated_delta_rule")
