"""The properties by name, cheapest conviction first."""

from collections.abc import Callable, Iterator

from packproof.properties.call_contract import determinism, memory, metadata, strides
from packproof.properties.case import Case
from packproof.properties.invariance import causality, isolation, packing, permutation, reference
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.size import size
from packproof.properties.state_passing import carry
from packproof.properties.torch_integration import torch
from packproof.properties.violation import Violation

Property = Callable[[KernelUnderTest, Case], Iterator[Violation]]

PROPERTIES: dict[str, Property] = {
    p.__name__: p
    for p in (
        reference,
        packing,
        isolation,
        causality,
        permutation,
        carry,
        determinism,
        memory,
        strides,
        metadata,
        torch,
        size,
    )
}

# compare runs of a kernel with each other, which round alike: what shows a fault is the layout
DEALT = tuple(
    p.__name__ for p in (packing, isolation, causality, permutation, carry, determinism, memory, strides, metadata)
)
