"""The installed third-party kernels: their checks, and one scoreboard."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.proof.peers.board import as_json, merge_boards, read_board
    from packproof.proof.peers.page import as_markdown
    from packproof.proof.peers.report import PeersReport
    from packproof.proof.peers.run import check_peers, open_peers

__all__ = ["PeersReport", "as_json", "as_markdown", "check_peers", "merge_boards", "open_peers", "read_board"]

export(
    sys.modules[__name__],
    {
        "packproof.proof.peers.board": ("as_json", "merge_boards", "read_board"),
        "packproof.proof.peers.page": ("as_markdown",),
        "packproof.proof.peers.report": ("PeersReport",),
        "packproof.proof.peers.run": ("check_peers", "open_peers"),
    },
)
