"""Random numbers that a module draws in train mode: with them a pack and its documents cannot be equal."""

from collections.abc import Callable

import torch
from torch import Tensor

DRAWS = (
    "it draws random numbers in train mode, others for each layout: dropout is turned off in nn.Dropout, and where an "
    'attribute of a module or of the config has "drop" in its name'
)


def follows_generator(call: Callable[[int], Tensor]) -> bool:
    """Whether an output follows torch's generator, as that of a dropout which could not be turned off.

    call: from the seed of the generator to the output.
    """
    first, same, other = call(0), call(0), call(1)
    return torch.equal(first, same) and not torch.equal(first, other)
