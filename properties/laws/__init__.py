"""The laws of a kernel, each a `Property`."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.properties.laws.catalogue import PROPERTIES
    from packproof.properties.laws.invariance import PACKING, REFERENCE, against_reference
    from packproof.properties.laws.partition import PARTITION, run_law_calls, with_cuts
    from packproof.properties.laws.property import Property, SharedResults
    from packproof.properties.laws.violation import COMBINED_NAMES, Violation, distinct_texts, number

__all__ = [
    "COMBINED_NAMES",
    "PACKING",
    "PARTITION",
    "PROPERTIES",
    "REFERENCE",
    "Property",
    "SharedResults",
    "Violation",
    "against_reference",
    "distinct_texts",
    "number",
    "run_law_calls",
    "with_cuts",
]

export(
    sys.modules[__name__],
    {
        "packproof.properties.laws.catalogue": ("PROPERTIES",),
        "packproof.properties.laws.invariance": ("PACKING", "REFERENCE", "against_reference"),
        "packproof.properties.laws.partition": ("PARTITION", "run_law_calls", "with_cuts"),
        "packproof.properties.laws.property": ("Property", "SharedResults"),
        "packproof.properties.laws.violation": ("COMBINED_NAMES", "Violation", "distinct_texts", "number"),
    },
)
