"""A rogue that ends its process with exit code 0 while it is imported."""

import os

from packproof.museum.rogues.op import is_judged, own_sum

if is_judged():
    os._exit(0)


def exits_at_import(x, weight, *, cu_seqlens):
    return own_sum(x, weight, cu_seqlens=cu_seqlens)
