"""FlashQLA: the gated delta rule in TileLang, with fla's convention. It takes the gate, not A_log and dt_bias."""

from packproof.adapters import Batched, adapt
from packproof.properties.declarations import Promises

gated_delta_rule = adapt(
    "flash_qla:chunk_gated_delta_rule",
    op="gated_delta_rule",
    tokens=Batched(),
    names={
        "initial_states": "initial_state",
        "return_final_states": "output_final_state",
        "qk_l2norm": "use_qk_l2norm_in_kernel",
    },
    dtypes=("bfloat16", "float16"),
    promises=Promises(chunk=64, cumsum=True, compute="operand"),
    domain="k == 128; p == 128; gate > -1e4",  # decays are differences of a running sum
    slack=False,
    float32=("g", "beta"),
)
