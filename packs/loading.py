"""Packs in a data loader: a sampler for indexed documents, a stream for documents that arrive one by one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, Sampler, get_worker_info

from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError, LayoutError, checked_init
from packproof.base.wording import kind
from packproof.packs.progress import PackProgress, read_state
from packproof.refs.packers import Piece, packs_of
from packproof.refs.packing import PackLayout


@checked_init
class PackSampler(Sampler[list[int]]):
    """The documents of each pack, by index: for `DataLoader(dataset, batch_sampler=..., collate_fn=PackCollator(...))`.

    lengths: tokens of each document.
    capacity: tokens of a pack.
    packer: best_fit, first_fit or in_order. Packs of cut documents come from `PackStream`.
    window: the packer's window; None for its default.
    shuffle: whether each epoch has another order of documents; `set_epoch` counts them.
    seed: of this order.
    rank, ranks: this process takes every ranks-th pack, beginning with number `rank`.
    drop_last: all ranks take equally many packs. If the number of packs is no multiple of `ranks`, drop_last leaves out
    the last ones; otherwise the first ones come again at the end.

    To resume, save `state_dict()`, and load it into an equal sampler: its next iteration goes on after the last yielded
    pack. A data loader with workers is ahead of training; torchdata's StatefulDataLoader counts there.

    Raises LayoutError for an invalid length or a document longer than the capacity, ArgumentError for a rank or a state
    of another sampler.

    >>> from packproof.packs import PackSampler
    >>> list(PackSampler([5, 2, 3, 4, 1, 9], capacity=10))
    [[0, 3, 4], [1, 2], [5]]
    >>> [list(PackSampler([5, 2, 3, 4, 1, 9], 10, rank=rank, ranks=2)) for rank in (0, 1)]
    [[[0, 3, 4], [5]], [[1, 2], [0, 3, 4]]]
    >>> sampler, resumed = PackSampler([5, 2, 3, 4], capacity=7), PackSampler([5, 2, 3, 4], capacity=7)
    >>> next(iter(sampler))
    [0, 1]
    >>> resumed.load_state_dict(sampler.state_dict())
    >>> list(resumed)
    [[2, 3]]
    """

    def __init__(
        self,
        lengths: Iterable[int],
        capacity: int,
        packer: str = "best_fit",
        window: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        drop_last: bool = False,
    ) -> None:
        if packer == "split":
            raise LayoutError("PackSampler: packer is 'split', which cuts documents; PackStream yields their pieces")
        self._lengths = PackLayout.from_lengths(lengths).lengths
        self._packing = {"capacity": capacity, "packer": packer, "window": window}
        self._ranks = whole_number("PackSampler", "ranks", ranks, 1, ArgumentError)
        self._rank = whole_number("PackSampler", "rank", rank, 0, ArgumentError)
        if self._rank >= self._ranks:
            raise ArgumentError(f"PackSampler: rank is {rank} of {ranks} ranks; 0 to {ranks - 1} was expected")
        self._shuffle, self._drop_last = shuffle, drop_last
        self._seed = whole_number("PackSampler", "seed", seed, 0, ArgumentError)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch, from its first pack. Without shuffle it is always the same."""
        self._epoch, self._progress = whole_number("set_epoch", "epoch", epoch), PackProgress()
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        n = len(self._lengths)
        order = torch.randperm(n, generator=generator).tolist() if self._shuffle else range(n)
        packs = list(packs_of((self._lengths[j] for j in order), **self._packing))  # type: ignore[arg-type]
        packs_per_rank, remainder = divmod(len(packs), self._ranks)
        if remainder and not self._drop_last:
            packs, packs_per_rank = (
                packs + [packs[i % len(packs)] for i in range(self._ranks - remainder)],
                packs_per_rank + 1,
            )
        rank_packs = packs[self._rank : packs_per_rank * self._ranks : self._ranks]
        self._packs = [[order[piece.sequence] for piece in pack] for pack in rank_packs]

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._progress.follow(iter(self._packs))

    def state_dict(self) -> dict[str, int]:
        """The epoch and the number of packs yielded in it."""
        return {"epoch": self._epoch, "packs": self._progress.packs}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a state in the next iteration."""
        epoch, n_packs = read_state("PackSampler", state, ("epoch", "packs"))
        self.set_epoch(epoch)
        if n_packs > len(self._packs):
            raise ArgumentError(f"PackSampler: state has {n_packs} packs of an epoch of {len(self._packs)}")
        self._progress.resume(n_packs)

    def __len__(self) -> int:
        return len(self._packs)


@checked_init
class PackStream(IterableDataset[list[tuple[Any, Piece]]]):
    """Packs of documents that arrive one by one: for `DataLoader(stream, batch_size=None, collate_fn=PackCollator())`.

    documents: tensors or lists of tokens, mappings with `input_ids`, or anything with its tokens counted by `length`.
    capacity, packer, window: as in `packproof.refs.packs_of`.
    length: the number of tokens of a document; None for the length of its `input_ids`, or of itself.

    Each pack is a list of (document, piece). With the packer split a piece can be a part of its document, and its state
    continues in the next pack (`carried_states`). A document is held until its last piece is out.
    Each of n workers takes every n-th document. With split there can be one worker only, since each pack continues the
    previous one.
    To resume, save `state_dict()`, and load it into a stream of the same documents from their beginning: its next
    iteration reads them up to the last yielded pack, and goes on after it. With workers, each has a state of its own;
    torchdata's StatefulDataLoader keeps them.

    Raises LayoutError and ArgumentError.

    >>> from packproof.packs import PackStream
    >>> stream = PackStream([[1, 2, 3], [4, 5, 6]], capacity=4, packer="split")
    >>> [[(piece.sequence, document[piece.start : piece.stop]) for document, piece in pack] for pack in stream]
    [[(0, [1, 2, 3]), (1, [4])], [(1, [5, 6])]]
    """

    def __init__(
        self,
        documents: Iterable[Any],
        capacity: int,
        packer: str = "best_fit",
        window: int | None = None,
        *,
        length: Callable[[Any], int] | None = None,
    ) -> None:
        if not isinstance(documents, Iterable):
            raise ArgumentError(f"PackStream: documents is {kind(documents)}; an iterable of them was expected")
        packs_of([], capacity, packer, window)  # refuses them now, not at the first document
        self._progress = PackProgress()
        self._documents, self._length = documents, length or _token_count
        self._packing = {"capacity": capacity, "packer": packer, "window": window}

    def __iter__(self) -> Iterator[list[tuple[Any, Piece]]]:
        yield from self._progress.follow(self._all_packs())

    def state_dict(self) -> dict[str, int]:
        """The number of packs yielded."""
        return {"packs": self._progress.packs}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a state in the next iteration."""
        [n_packs] = read_state("PackStream", state, ("packs",))
        self._progress.resume(n_packs)

    def _all_packs(self) -> Iterator[list[tuple[Any, Piece]]]:
        worker = get_worker_info()
        if worker and worker.num_workers > 1 and self._packing["packer"] == "split":
            raise ArgumentError(
                f"PackStream: {worker.num_workers} workers cannot share a split stream; use one, or none"
            )
        pending_documents: dict[int, Any] = {}
        lengths: dict[int, int] = {}

        def document_lengths() -> Iterator[int]:
            worker_documents = (
                document
                for i, document in enumerate(self._documents)
                if not worker or i % worker.num_workers == worker.id
            )
            for j, document in enumerate(worker_documents):
                pending_documents[j], lengths[j] = document, self._length(document)
                yield lengths[j]

        for pack in packs_of(document_lengths(), **self._packing):  # type: ignore[arg-type]
            yield [(pending_documents[piece.sequence], piece) for piece in pack]
            for piece in pack:
                if piece.stop == lengths[piece.sequence]:
                    del pending_documents[piece.sequence], lengths[piece.sequence]


def _token_count(document: Any) -> int:
    return len(document["input_ids"] if hasattr(document, "keys") else document)
