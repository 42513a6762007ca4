"""Packs for training: a sampler and a stream of packs, a collator of model inputs, and states carried between packs.

The packers are functions of lengths in `packproof.refs`. Here they serve a data loader.
"""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.packs.carry import carried_states
    from packproof.packs.collate import PackCollator
    from packproof.packs.loading import PackSampler, PackStream

__all__ = ["PackCollator", "PackSampler", "PackStream", "carried_states"]

export(
    sys.modules[__name__],
    {
        "packproof.packs.carry": ("carried_states",),
        "packproof.packs.collate": ("PackCollator",),
        "packproof.packs.loading": ("PackSampler", "PackStream"),
    },
)
