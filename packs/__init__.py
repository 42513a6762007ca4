"""Packs for training: which documents go together, what a model is given for them, and states that go on.

`packproof.refs` has the packers, functions of lengths; here they serve a data loader.
"""

import sys
from typing import TYPE_CHECKING

from packproof.refs.lazy import export

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
