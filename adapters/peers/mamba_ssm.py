"""mamba-ssm: its SSD, and its selective scan over a padded batch."""

from packproof.adapters import Batched, Padded, adapt, seq_idx
from packproof.properties.promises import Promises

_SCAN = "mamba_ssm.ops.selective_scan_interface:selective_scan_fn"
_NO_STATES_OF_PACKS = ("initial_states", "return_final_states")  # states belong to a row of the batch
_REFUSALS = ("only supports state dimension <= 256", "C must have shape")  # the second: if B and C differ in groups

# With its default chunks, which start with the pack. It takes fp32, but rounds operands of its products to tf32.
ssd = adapt(
    "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined",
    op="ssd",
    tokens=Batched(),
    metadata={"seq_idx": seq_idx},
    given={"chunk_size": 256},
    without=_NO_STATES_OF_PACKS,
    dtypes=("bfloat16", "float16"),
    promises=Promises(grid="pack", chunk=256, cumsum=True, compute="operand"),
    slack=False,
)

# It takes no boundaries: a sequence is a row of a padded batch. Its backward pass reads outputs as they were stored.
selective_scan = adapt(
    _SCAN,
    op="selective_scan",
    tokens=Padded(axis=-1),
    metadata={},
    refuses=_REFUSALS,
    promises=Promises(compute="operand"),
)

# The whole pack as one sequence, for timing only. The time includes the transposes to channels first.
selective_scan_unpacked = adapt(
    _SCAN,
    op="selective_scan",
    tokens=Batched(axis=-1),
    metadata={},
    refuses=_REFUSALS,
)
