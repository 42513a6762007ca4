"""The properties of packproof by name, those first that detect bugs at the least cost."""

from packproof.properties.call_contract import DETERMINISM, MEMORY, METADATA, STRIDES
from packproof.properties.invariance import CAUSALITY, ISOLATION, PACKING, PERMUTATION, REFERENCE
from packproof.properties.property import Property
from packproof.properties.second_derivative import DOUBLE_BACKWARD
from packproof.properties.size import SIZE
from packproof.properties.state_passing import CARRY
from packproof.properties.torch_integration import CUDA_GRAPH, OPCHECK, SIDE_STREAM, TORCH_COMPILE

PROPERTIES: dict[str, Property] = {
    p.name: p
    for p in (
        REFERENCE,
        PACKING,
        ISOLATION,
        CAUSALITY,
        PERMUTATION,
        CARRY,
        DETERMINISM,
        MEMORY,
        STRIDES,
        METADATA,
        DOUBLE_BACKWARD,
        OPCHECK,
        TORCH_COMPILE,
        SIDE_STREAM,
        CUDA_GRAPH,
        SIZE,
    )
}
