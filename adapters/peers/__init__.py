"""Adapters of third-party kernels, a module for each package; `registry` lists them."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.adapters.peers.registry import PEERS, Peer, distribution_of, peers_of

__all__ = ["PEERS", "Peer", "distribution_of", "peers_of"]

export(
    sys.modules[__name__],
    {
        "packproof.adapters.peers.registry": ("PEERS", "Peer", "distribution_of", "peers_of"),
    },
)
