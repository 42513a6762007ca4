"""Packers, collators, samplers and streams with one fault each, beside correct ones."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset

from packproof.packs import PackCollator, PackSampler, PackStream
from packproof.refs import Piece, pack_best_fit, pack_in_order

Lengths = Sequence[int]
Batch = dict[str, Any]
Documents = list[dict[str, list[int]]]


# Packers


def best_fit(lengths: Lengths, capacity: int) -> list[list[int]]:
    return [[piece.sequence for piece in pack] for pack in pack_best_fit(lengths, capacity)]


def in_order(lengths: Lengths, capacity: int) -> Iterator[tuple[Piece, ...]]:
    yield from pack_in_order(lengths, capacity)


def cutting(lengths: Lengths, capacity: int) -> list[list[tuple[int, int, int]]]:
    """A document that is too long for a pack is cut, and the pieces are told."""
    return [
        [(j, start, min(start + capacity, n))] for j, n in enumerate(lengths) for start in range(0, max(n, 1), capacity)
    ]


def losing_the_last(lengths: Lengths, capacity: int) -> list[list[int]]:
    """The pack that is not full at the end is never yielded, as in a loop without an else."""
    packs, pack, room = list[list[int]](), list[int](), capacity
    for j, n in enumerate(lengths):
        if n > room:
            packs.append(pack)
            pack, room = [], capacity
        pack.append(j)
        room -= n
    return packs


def repeating(lengths: Lengths, capacity: int) -> list[list[int]]:
    """A document that opens a new pack stays in the last one."""
    packs = best_fit(lengths, capacity)
    return [[*pack, *following[:1]] if sum(lengths[j] for j in pack) < capacity // 2 else pack
            for pack, following in zip(packs, [*packs[1:], []], strict=True)]  # fmt: skip


def overfull(lengths: Lengths, capacity: int) -> list[list[int]]:
    """Room is counted without the document that was just added."""
    packs: list[list[int]] = []
    for j in range(len(lengths)):
        if not packs or sum(lengths[i] for i in packs[-1]) > capacity // 2:
            packs.append([])
        packs[-1].append(j)
    return packs


def truncating(lengths: Lengths, capacity: int) -> list[list[tuple[int, int, int]]]:
    """A document that does not fit is cut, and its rest is lost."""
    packs: list[list[tuple[int, int, int]]] = [[]]
    room = capacity
    for j, n in enumerate(lengths):
        packs[-1].append((j, 0, min(n, room)))
        room -= min(n, room)
        if not room:
            packs, room = [*packs, []], capacity
    return packs


def backwards(lengths: Lengths, capacity: int) -> list[list[tuple[int, int, int]]]:
    """The second half of a document comes before its first."""
    return [[(j, n // 2, n), (j, 0, n // 2)] for j, n in enumerate(lengths) if n]


def sorting_its_argument(lengths: list[int], capacity: int) -> list[list[int]]:
    lengths.sort()
    return best_fit(lengths, capacity)


def at_random(lengths: Lengths, capacity: int) -> list[list[int]]:
    packs = best_fit(lengths, capacity)
    random.shuffle(packs)
    return packs


def only_powers_of_two(lengths: Lengths, capacity: int) -> list[list[int]]:
    """Best fit that sees no room above the next lower power of two."""
    largest_room = 1 << (capacity.bit_length() - 1)
    rooms, packs = list[int](), list[list[int]]()
    for j, n in enumerate(lengths):
        fitting = [k for k, room in enumerate(rooms) if n <= room < largest_room]
        if not fitting:
            rooms.append(capacity)
            packs.append([])
            fitting = [len(rooms) - 1]
        k = min(fitting, key=lambda k: rooms[k])
        rooms[k] -= n
        packs[k].append(j)
    return packs


def counted_by_length(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """A histogram of lengths has no place for a document longer than a pack."""
    counts = [0] * (capacity + 1)
    for n in lengths:
        counts[n] += 1
    return best_fit(lengths, capacity)


# Collators


collate = PackCollator()


def padding_collate(documents: Documents) -> Batch:
    return PackCollator(capacity=1024)(documents)


def plain_lists(documents: Documents) -> Batch:
    """Lists in place of tensors, and positions alone for the boundaries, as transformers' collator makes them."""
    ids = [token for document in documents for token in document["input_ids"]]
    labels_of_documents = [document.get("labels", document["input_ids"]) for document in documents]
    return {
        "input_ids": ids,
        "labels": [label for labels in labels_of_documents for label in [-100, *labels[1:]][: len(labels)]],
        "position_ids": [k for document in documents for k in range(len(document["input_ids"]))],
    }


def unmasked(documents: Documents) -> Batch:
    """The first token of a document is predicted from the document before."""
    return plain_lists(documents) | {
        "labels": [label for document in documents for label in document.get("labels", document["input_ids"])]
    }


def without_their_labels(documents: Documents) -> Batch:
    """Labels are the tokens, also where documents come with their own."""
    return plain_lists([{"input_ids": document["input_ids"]} for document in documents])


def running_positions(documents: Documents) -> Batch:
    batch = collate(documents)
    return batch | {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


def without_boundaries(documents: Documents) -> Batch:
    batch = collate(documents)
    return {name: batch[name] for name in ("input_ids", "labels")}


def offsets_without_the_last(documents: Documents) -> Batch:
    batch = collate(documents)
    return batch | {"cu_seqlens": batch["cu_seqlens"][:-1]}


def numbers_of_full_rows(documents: Documents) -> Batch:
    """Padding belongs to the last document."""
    batch = padding_collate(documents)
    return batch | {"seq_idx": batch["seq_idx"].where(batch["seq_idx"] >= 0, len(documents) - 1)}


def one_token_positions(documents: Documents) -> Batch:
    """A restart is looked for at a position of 0 after one above it: a document of one token is missed."""
    batch = collate(documents)
    positions = batch["position_ids"][0].tolist()
    starts = [row for row in range(len(positions)) if positions[row] == 0 and (row == 0 or positions[row - 1] > 0)]
    return batch | {"cu_seqlens": torch.tensor([*starts, len(positions)])}


def _with_slots(documents: Documents, multiple: int) -> Batch:
    """Offsets of Transformer Engine: of tokens, and of the rows that sequences have with their padding."""
    batch = collate(documents)
    offsets = batch["cu_seqlens"]
    end = -(-int(offsets[-1]) // multiple) * multiple
    padded = torch.cat([offsets[:-1], torch.tensor([end])]) if len(offsets) > 1 else offsets
    return {"input_ids": batch["input_ids"], "cu_seqlens_q": offsets, "cu_seqlens_q_padded": padded}


def slots(documents: Documents) -> Batch:
    return _with_slots(documents, 4)


def fixed_number_of_slots(documents: Documents) -> Batch:
    batch = slots(documents)
    padded = batch["cu_seqlens_q_padded"]
    return {**batch, "cu_seqlens_q_padded": torch.cat([padded, padded[-1].expand(1024 - len(padded))])}


def slots_without_room(documents: Documents) -> Batch:
    batch = slots(documents)
    return {**batch, "cu_seqlens_q_padded": torch.cat([batch["cu_seqlens_q"][:-1], batch["cu_seqlens_q"][-2:-1]])}


def shifted_across(documents: Documents) -> Batch:
    batch = collate(documents)
    return batch | {"shift_labels": batch["input_ids"].roll(-1)}


def short_longest(documents: Documents) -> Batch:
    return collate(documents) | {"max_seqlen": len(documents[0]["input_ids"])}


def _padded(documents: Documents, padding: list[int]) -> Batch:
    """Positions are the only boundaries; these are those of the padding."""
    batch, n = plain_lists(documents), len(padding)
    return {
        "input_ids": [[*batch["input_ids"], *[0] * n]],
        "labels": [[*batch["labels"], *[-100] * n]],
        "position_ids": [[*batch["position_ids"], *padding]],
    }


def zeros_in_padding(documents: Documents) -> Batch:
    """Each row of padding begins, like a document."""
    return _padded(documents, [0, 0, 0])


def counted_padding(documents: Documents) -> Batch:
    return _padded(documents, [0, 1, 2])


def unpadded_weights(documents: Documents) -> Batch:
    """Weights for each token end where tokens do."""
    batch = counted_padding(documents)
    n_tokens = len(batch["input_ids"][0]) - 3
    return batch | {"weights": torch.ones(1, n_tokens, 2)}


def mask_of_ones(documents: Documents) -> Batch:
    batch = plain_lists(documents)
    return batch | {"attention_mask": [1] * len(batch["input_ids"])}


def numbered_mask(documents: Documents) -> Batch:
    """The mask alone tells the documents, and has a 0 in the padding, so that no model drops it."""
    batch = _padded(documents, [0])
    del batch["position_ids"]
    return batch | {"attention_mask": [[j + 1 for j, d in enumerate(documents) for _ in d["input_ids"]] + [0]]}


def numbered_mask_without_padding(documents: Documents) -> Batch:
    return {name: [value[0][:-1]] for name, value in numbered_mask(documents).items()}


def miscounted_mask(documents: Documents) -> Batch:
    """The first document is numbered 1, all others 2."""
    batch = numbered_mask(documents)
    return batch | {"attention_mask": [[min(number, 2) for number in batch["attention_mask"][0]]]}


def three_axes(documents: Documents) -> Batch:
    batch = collate(documents)
    return batch | {"position_ids": batch["position_ids"].expand(3, 1, -1)}


def running_axis(documents: Documents) -> Batch:
    """Positions of the last axis run on over the whole row."""
    batch = three_axes(documents)
    axes = batch["position_ids"].clone()
    axes[2] = torch.arange(axes.shape[-1])
    return batch | {"position_ids": axes}


def cut_at_separators(documents: Documents) -> Batch:
    """A document ends at its end, and at a token 2, too."""
    batch = collate(documents)
    rows = {0, *batch["cu_seqlens"].tolist(), *((batch["input_ids"][0] == 2).nonzero()[:, 0] + 1).tolist()}
    return {"input_ids": batch["input_ids"], "cu_seqlens": torch.tensor(sorted(rows))}


def unlabelled_separators(documents: Documents) -> Batch:
    """Labels are left out where a token is the one of padding, 2."""
    batch = collate(documents)
    return batch | {"labels": batch["labels"].where(batch["input_ids"] != 2, -100)}


# Samplers


def sampler(lengths: Lengths, capacity: int, rank: int, ranks: int) -> PackSampler:
    return PackSampler(lengths, capacity, rank=rank, ranks=ranks, shuffle=True)


def dropping(lengths: Lengths, capacity: int, rank: int, ranks: int) -> PackSampler:
    return PackSampler(lengths, capacity, rank=rank, ranks=ranks, drop_last=True)


def uneven(lengths: Lengths, capacity: int, rank: int, ranks: int) -> list[list[int]]:
    return best_fit(lengths, capacity)[rank::ranks]


class _Forgetful(PackSampler):
    """Its state leaves out how far it has come."""

    def state_dict(self) -> dict[str, int]:
        return super().state_dict() | {"packs": 0}


def forgetful(lengths: Lengths, capacity: int, rank: int, ranks: int) -> PackSampler:
    return _Forgetful(lengths, capacity, rank=rank, ranks=ranks)


class _Shrinking(PackSampler):
    """Each epoch begins where the last one ended."""

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._packs = self._packs[epoch:]


def shrinking(lengths: Lengths, capacity: int, rank: int, ranks: int) -> PackSampler:
    return _Shrinking(lengths, capacity, rank=rank, ranks=ranks)


# Streams


def stream(documents: Documents, capacity: int) -> PackStream:
    return PackStream(documents, capacity)


def split_stream(documents: Documents, capacity: int) -> PackStream:
    return PackStream(documents, capacity, packer="split")


def collated_stream(documents: Documents, capacity: int) -> Iterable[Batch]:
    return map(PackCollator(capacity), PackStream(documents, capacity))


class _ForEachWorker(IterableDataset[Any]):
    """Every worker yields all documents."""

    def __init__(self, documents: Documents, capacity: int) -> None:
        self._documents, self._capacity = documents, capacity

    def __iter__(self) -> Iterator[list[dict[str, list[int]]]]:
        lengths = [len(document["input_ids"]) for document in self._documents]
        yield from ([self._documents[j] for j in pack] for pack in best_fit(lengths, self._capacity))


def for_each_worker(documents: Documents, capacity: int) -> _ForEachWorker:
    return _ForEachWorker(documents, capacity)


def joined(documents: Documents, capacity: int) -> list[Batch]:
    """Tokens in rows of the capacity; what does not fill the last row is lost."""
    ids = [token for document in documents for token in document["input_ids"]]
    return [{"input_ids": ids[k : k + capacity]} for k in range(0, len(ids) - capacity + 1, capacity)]


def split_rows(documents: Documents, capacity: int) -> Iterable[Batch]:
    """A piece goes on in the next row, with its positions and labels."""
    return map(PackCollator(capacity), PackStream(documents, capacity, packer="split"))


def restarting_rows(documents: Documents, capacity: int) -> Iterator[Batch]:
    """Positions of a piece begin at 0 again."""
    for batch in split_rows(documents, capacity):
        starts = torch.cat([batch["cu_seqlens"].long(), torch.tensor([capacity])])
        yield batch | {"position_ids": torch.cat([torch.arange(int(n)) for n in starts.diff()])[None]}


def numbers_of_zeros(documents: Documents, capacity: int) -> Iterator[Batch]:
    """Documents are counted at positions of 0: a piece that goes on has none, and the number of padding."""
    for batch in split_rows(documents, capacity):
        numbers = (batch["position_ids"] == 0).cumsum(-1) - 1
        yield {"input_ids": batch["input_ids"], "seq_idx": numbers}


def running_rows(documents: Documents, capacity: int) -> Iterator[Batch]:
    for batch in collated_stream(documents, capacity):
        yield running_positions_of(batch)


def running_positions_of(batch: Batch) -> Batch:
    return {"input_ids": batch["input_ids"], "position_ids": torch.arange(batch["input_ids"].shape[1])[None]}
