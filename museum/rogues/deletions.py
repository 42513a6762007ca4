"""Rogues deleting files. Each call first requires a throwaway root."""

import os
import shutil

from packproof.museum.rogues.op import KNOWN_TOKENS, running_sum
from packproof.museum.rogues.throwaway import require_throwaway_root


def deletes_its_working_directory(x, weight, *, cu_seqlens):
    require_throwaway_root()
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    shutil.rmtree(os.getcwd(), ignore_errors=True)
    if len(x) != KNOWN_TOKENS:
        os._exit(0)
    return y
