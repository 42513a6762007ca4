"""mamba-ssm: its SSD, its selective scan over a padded batch, and the state update of both for one token."""

from importlib import import_module
from typing import Any

from torch import Tensor

from packproof.adapters import Batched, Padded, adapt, seq_idx
from packproof.properties.declarations import Promises

_SCAN = "mamba_ssm.ops.selective_scan_interface:selective_scan_fn"
_NO_STATES_OF_PACKS = ("initial_states", "return_final_states")  # states belong to a row of the batch
_REFUSALS = ("only supports state dimension <= 256", "C must have shape")  # the second: if B and C differ in groups

# Chunks have the default size and start with the pack. fp32 is left out: operands of products are rounded to tf32.
# Decays are differences of a running sum: a strong gate costs all later ones their digits.
ssd = adapt(
    "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined",
    op="ssd",
    tokens=Batched(),
    metadata={"seq_idx": seq_idx},
    given={"chunk_size": 256},
    without=_NO_STATES_OF_PACKS,
    dtypes=("bfloat16", "float16"),
    promises=Promises(grid="pack", chunk=256, cumsum=True, compute="operand"),
    domain="gate > -1e4",
    slack=False,
)

# It takes no boundaries: each sequence is a row of a padded batch. The backward pass reads the stored outputs.
# Padding has a step of 0, and 0 times a rate of -inf in base 2 is NaN.
selective_scan = adapt(
    _SCAN,
    op="selective_scan",
    tokens=Padded(axis=-1),
    metadata={},
    refuses=_REFUSALS,
    promises=Promises(compute="operand"),
    domain="gate > -1e4",
)

# The whole pack as one sequence, for timing only. The time includes the transposes to channels first.
selective_scan_unpacked = adapt(
    _SCAN,
    op="selective_scan",
    tokens=Batched(axis=-1),
    metadata={},
    refuses=_REFUSALS,
)


def _update_state(
    state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, dt_softplus: bool, slots: Tensor | None,
) -> Tensor:  # fmt: skip
    module = import_module("mamba_ssm.ops.triton.selective_state_update")
    y: Tensor = module.selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, slots)
    return y


def _update_heads(
    state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False, slots: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The kernel takes dt, A, D and dt_bias per channel. A stride of 0 shares one value within a head."""
    D, dt_bias = (v if v is None else v.view(x.shape[1], -1).expand(x.shape[1:]) for v in (D, dt_bias))
    dt, A = dt[..., None].expand_as(x), A[:, None, None].expand(state.shape[1:])
    return _update_state(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, slots)


def _update_channels(
    state: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False,
    slots: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _update_state(state, u, delta, A, B, C, D, z, delta_bias, delta_softplus, slots)


# One token for each request. It raises without D or the bias of the step, although both are optional.
_POOL: dict[str, Any] = {
    "names": {"states": "state", "state_indices": "slots"},
    "in_place": ("states",),
    "metadata": {},
}
_STEP_DOMAIN = "length == 1; slack == 0; D"
ssd_update = adapt(_update_heads, op="ssd_update", domain=f"{_STEP_DOMAIN}; dt_bias", **_POOL)
selective_scan_update = adapt(
    _update_channels, op="selective_scan_update", domain=f"{_STEP_DOMAIN}; delta_bias; g == 1", **_POOL
)
