"""The properties of packproof by name, in order of the cost of detecting a bug, cheapest first."""

from packproof.properties.laws.call_contract import DETERMINISM, MEMORY, METADATA, RACES, STRIDES
from packproof.properties.laws.gradients import GRADIENTS
from packproof.properties.laws.invariance import CAUSALITY, ISOLATION, PACKING, PERMUTATION, REFERENCE
from packproof.properties.laws.modes import MODES
from packproof.properties.laws.partition import PARTITION
from packproof.properties.laws.pool import POOL
from packproof.properties.laws.property import Property
from packproof.properties.laws.reuse import REUSE
from packproof.properties.laws.second_derivative import DOUBLE_BACKWARD
from packproof.properties.laws.size import SIZE
from packproof.properties.laws.state_passing import CARRY
from packproof.properties.laws.torch_integration import CUDA_GRAPH, OPCHECK, SIDE_STREAM, TORCH_COMPILE
from packproof.properties.steadiness.law import STEADY

PROPERTIES: dict[str, Property] = {
    p.name: p
    for p in (
        REFERENCE,
        PACKING,
        ISOLATION,
        CAUSALITY,
        PERMUTATION,
        CARRY,
        POOL,
        PARTITION,
        DETERMINISM,
        MEMORY,
        STRIDES,
        METADATA,
        REUSE,
        GRADIENTS,
        MODES,
        DOUBLE_BACKWARD,
        OPCHECK,
        TORCH_COMPILE,
        SIDE_STREAM,
        CUDA_GRAPH,
        STEADY,
        RACES,
        SIZE,
    )
}
