"""Megatron-Bridge's first fit, as a packer: its packs hold lengths, each of which is a document's."""

import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    if "tqdm" not in sys.modules and find_spec("tqdm") is None:
        sys.modules["tqdm"] = _no_progress_bar()
    documents: dict[int, deque[int]] = defaultdict(deque)
    for document, length in enumerate(lengths):
        documents[length].append(document)
    packs = import_module("megatron.bridge.data.datasets.packing_utils").first_fit(list(lengths), capacity)
    return [[documents[length].popleft() for length in pack] for pack in packs]


def _no_progress_bar() -> Any:
    tqdm: Any = ModuleType("tqdm")
    tqdm.tqdm = lambda items: items
    return tqdm
