"""How far a value may lie from the reference: the error budget, and the bounds it follows from."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.bounds.budget import (
        K_ACC,
        K_OP,
        UNDERFLOW_UNIT,
        UNIT_ROUNDOFF,
        accumulator_roundoff,
        same_bits,
        score,
    )
    from packproof.properties.bounds.magnitude_ops import magnitude
    from packproof.properties.bounds.oracle import OracleAnswer, oracle_answer, vjp
    from packproof.properties.bounds.roundings import Roundings
    from packproof.properties.bounds.running_error import run_with_error_bounds

__all__ = [
    "K_ACC",
    "K_OP",
    "UNDERFLOW_UNIT",
    "UNIT_ROUNDOFF",
    "OracleAnswer",
    "Roundings",
    "accumulator_roundoff",
    "magnitude",
    "oracle_answer",
    "run_with_error_bounds",
    "same_bits",
    "score",
    "vjp",
]

export(
    sys.modules[__name__],
    {
        "packproof.properties.bounds.budget": (
            "K_ACC",
            "K_OP",
            "UNDERFLOW_UNIT",
            "UNIT_ROUNDOFF",
            "accumulator_roundoff",
            "same_bits",
            "score",
        ),
        "packproof.properties.bounds.magnitude_ops": ("magnitude",),
        "packproof.properties.bounds.oracle": ("OracleAnswer", "oracle_answer", "vjp"),
        "packproof.properties.bounds.roundings": ("Roundings",),
        "packproof.properties.bounds.running_error": ("run_with_error_bounds",),
    },
)
