"""flash-linear-attention's gated delta rule and KDA before they could compute their gates and σ(β) themselves.

A keyword that they do not know is ignored: those of today must not be passed.
"""

from typing import Any

from packproof.adapters import Batched, adapt
from packproof.adapters.adapter import Adapter
from packproof.properties.declarations import Promises


def _adapt_rule(target: str, op: str, *domain: str) -> Adapter:
    declaration: dict[str, Any] = {
        "op": op,
        "tokens": Batched(),
        "names": {
            "initial_states": "initial_state",
            "return_final_states": "output_final_state",
            "qk_l2norm": "use_qk_l2norm_in_kernel",
        },
        "dtypes": ("bfloat16", "float16"),
        "promises": Promises(chunk=64, cumsum=True, compute="operand"),
        "float32": ("g", "beta"),
        "domain": "; ".join(("k <= 256", "gate > -1e4", *domain)),  # decays are differences of a running sum
        "slack": False,
    }
    return adapt(target, **declaration)


gated_delta_rule = _adapt_rule("fla.ops.gated_delta_rule:chunk_gated_delta_rule", "gated_delta_rule", "hk == hv")
kda = _adapt_rule("fla.ops.kda:chunk_kda", "kda")
