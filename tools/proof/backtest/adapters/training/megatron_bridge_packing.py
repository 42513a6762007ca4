"""Megatron-Bridge: packs of fine-tuning that are made offline, from the rows of a data set."""

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from packproof.proof.backtest.adapters.training.megatron_bridge_batches import without_megatron
from packproof.proof.backtest.adapters.training.stand_ins import PAD

_MULTIPLE = 4
_MANY = 1 << 20
"""Ids of a document: this many times its number, counted from 1, and above."""


class OfflinePacks:
    """The packer of a data set: tokenized, padded to a multiple, counted by length, packed and filled."""

    multiple = _MULTIPLE

    def __init__(self) -> None:
        without_megatron()
        self._module: Any = import_module("megatron.bridge.data.datasets.packed_sequence")

    def __call__(self, lengths: Sequence[int], capacity: int) -> list[list[tuple[int, int, int]]]:
        np.random.seed(0)
        with mock.patch.object(self._module, "create_sft_dataset", lambda **options: _DataSet(lengths, **options)):
            rows = self._module.tokenize_dataset("", None, capacity, 0, pad_seq_to_mult=self.multiple)
        sequences, histogram = self._module.create_hist(rows, capacity)
        assignments, _ = self._module.create_packing_strategy(histogram, capacity, "first_fit_decreasing")
        packs = self._module.fill_packing_strategy(assignments, sequences, capacity, PAD)
        return [[_piece(ids) for ids in _split(pack)] for pack in packs]


class OfflinePacksWithoutPadding(OfflinePacks):
    multiple = 1


class _DataSet:
    """Rows of a data set. The model gets all tokens but the last, here an end of text, since labels are shifted."""

    tokenizer = SimpleNamespace(eod=PAD)

    def __init__(self, lengths: Sequence[int], seq_length: int, pad_seq_length_to_mult: int, **_: Any) -> None:
        self._lengths, self.max_seq_length, self.pad_seq_length_to_mult = lengths, seq_length, pad_seq_length_to_mult

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, document: int) -> dict[str, Any]:
        first, n = (document + 1) * _MANY, self._lengths[document]
        return {"input_ids": [*range(first, first + n), PAD], "loss_mask": [1] * (n + 1)}


def _split(pack: dict[str, Any]) -> list[list[int]]:
    """The sequences of a pack, each without the last token, which is a label alone."""
    starts = [*pack["seq_start_id"], len(pack["input_ids"])]
    return [pack["input_ids"][start : stop - 1] for start, stop in pairwise(starts)]


def _piece(ids: Sequence[int]) -> tuple[int, int, int]:
    tokens = [token for token in ids if token != PAD]
    if not tokens:
        return 0, 0, 0
    document, first = divmod(tokens[0], _MANY)
    return document - 1, first, first + len(tokens)
