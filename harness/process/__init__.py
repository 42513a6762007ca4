"""The processes that run kernels, and generators run side by side in forks."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.harness.process.child import KILLED
    from packproof.harness.process.execution.error_classification import loses_the_device
    from packproof.harness.process.execution.refusals import is_raised_by_torch
    from packproof.harness.process.gpus import gpu_environment, visible_gpus, worker_count
    from packproof.harness.process.parallel import differentiate_apart, run_on_every_core, run_side_by_side
    from packproof.harness.process.sharing import CoreTime
    from packproof.harness.process.wire import Decoder, call_frame, decode_call, encode
    from packproof.harness.process.worker import Worker
    from packproof.harness.process.zygote import PROCESS_NAME, prepare_imports
    from packproof.harness.process.zygote_client import import_path, set_isolation, shared_zygote

__all__ = [
    "KILLED",
    "PROCESS_NAME",
    "CoreTime",
    "Decoder",
    "Worker",
    "call_frame",
    "decode_call",
    "differentiate_apart",
    "encode",
    "gpu_environment",
    "import_path",
    "is_raised_by_torch",
    "loses_the_device",
    "prepare_imports",
    "run_on_every_core",
    "run_side_by_side",
    "set_isolation",
    "shared_zygote",
    "visible_gpus",
    "worker_count",
]

export(
    sys.modules[__name__],
    {
        "packproof.harness.process.child": ("KILLED",),
        "packproof.harness.process.execution.error_classification": ("loses_the_device",),
        "packproof.harness.process.execution.refusals": ("is_raised_by_torch",),
        "packproof.harness.process.gpus": ("gpu_environment", "visible_gpus", "worker_count"),
        "packproof.harness.process.parallel": ("differentiate_apart", "run_on_every_core", "run_side_by_side"),
        "packproof.harness.process.sharing": ("CoreTime",),
        "packproof.harness.process.wire": ("Decoder", "call_frame", "decode_call", "encode"),
        "packproof.harness.process.worker": ("Worker",),
        "packproof.harness.process.zygote": ("PROCESS_NAME", "prepare_imports"),
        "packproof.harness.process.zygote_client": ("import_path", "set_isolation", "shared_zygote"),
    },
)
