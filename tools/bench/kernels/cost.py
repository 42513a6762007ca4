"""The minimal cost of a call: bytes from the axes of the op, operations from its declared count."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from packproof.properties.cases import Sample, dtype_of
from packproof.properties.ops import Flops


@dataclass(frozen=True)
class Cost:
    """The cost of one pass."""

    bytes: int
    """The minimum to move."""
    flops: int
    """Operations, 0 if the op declares none."""


def costs(sample: Sample, *, gradients: bool) -> dict[str, Cost]:
    """The costs by pass. Forward reads each input and writes each output once; backward reads the inputs it needs and
    the incoming gradients and writes the gradients, once each. Both passes together cost the sum."""
    op, inputs = sample.op, sample.inputs
    flops = op.flops(sample.sizes, sample.lengths, sample.options) if op.flops else Flops(0, 0)
    forward = Cost(_bytes(inputs.values()) + _output_bytes(sample), flops.forward)
    if not gradients:
        return {"forward": forward}
    read_tensors = [x for name, x in inputs.items() if op.saved is None or name in op.saved]
    written_tensors = [inputs[name] for name in sample.wrt]
    backward = Cost(_bytes(read_tensors) + _bytes(sample.cotangents.values()) + _bytes(written_tensors), flops.backward)
    both = Cost(forward.bytes + backward.bytes, forward.flops + backward.flops)
    return {"forward": forward, "backward": backward, "both": both}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def _output_bytes(sample: Sample) -> int:
    tokens = str(next(iter(sample.inputs.values())).dtype).removeprefix("torch.")
    total = 0
    for name in sample.outputs:
        count = 1
        for n in sample.shape(name):
            count *= n
        total += count * dtype_of(sample.op, name, tokens).itemsize
    return total
