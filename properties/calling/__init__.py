"""The call of a kernel: arguments, results and refusals, and the names in its signature."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.calling.call import (
        BrokenReference,
        Call,
        FailedCompilation,
        MachineLimit,
        MissingModule,
        Mode,
        OutsideDomain,
        Placement,
        Refusal,
        Result,
        Runner,
        SlowCompilation,
        VacuousBound,
        moved_rows,
    )
    from packproof.properties.calling.pages import PagePlacement
    from packproof.properties.calling.signature import call_signature, catches_all, named_metadata
    from packproof.properties.calling.tensor_key import TensorKey, gradient

__all__ = [
    "BrokenReference",
    "Call",
    "FailedCompilation",
    "MachineLimit",
    "MissingModule",
    "Mode",
    "OutsideDomain",
    "PagePlacement",
    "Placement",
    "Refusal",
    "Result",
    "Runner",
    "SlowCompilation",
    "TensorKey",
    "VacuousBound",
    "call_signature",
    "catches_all",
    "gradient",
    "moved_rows",
    "named_metadata",
]

export(
    sys.modules[__name__],
    {
        "packproof.properties.calling.call": (
            "BrokenReference",
            "Call",
            "FailedCompilation",
            "MachineLimit",
            "MissingModule",
            "Mode",
            "OutsideDomain",
            "Placement",
            "Refusal",
            "Result",
            "Runner",
            "SlowCompilation",
            "VacuousBound",
            "moved_rows",
        ),
        "packproof.properties.calling.pages": ("PagePlacement",),
        "packproof.properties.calling.signature": ("call_signature", "catches_all", "named_metadata"),
        "packproof.properties.calling.tensor_key": ("TensorKey", "gradient"),
    },
)
