"""Packers and collators of others as targets of `packproof packs check`.

packproof packs check examples/packing/packers_of_others.py:flattening
"""

from collections.abc import Iterator
from typing import Any

Documents = list[dict[str, Any]]


def flattening(documents: Documents) -> Any:
    """The padding-free collator of transformers."""
    from transformers import DataCollatorWithFlattening  # noqa: PLC0415

    return DataCollatorWithFlattening()(documents)


def flattening_for_flash(documents: Documents) -> Any:
    """The same with the offsets of FlashAttention and the numbers of documents."""
    from transformers import DataCollatorWithFlattening  # noqa: PLC0415

    return DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(documents)


def trl_best_fit(lengths: list[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """TRL's default packing, by best fit."""
    return _trl(lengths, capacity, "bfd")


def trl_best_fit_split(lengths: list[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """The same, where the rest of a long document goes on in another pack."""
    return _trl(lengths, capacity, "bfd_split")


def _trl(lengths: list[int], capacity: int, strategy: str) -> list[list[tuple[int, int, int]]]:
    """The pieces of documents (document, start, stop) in each pack, read from tokens that are numbers of their own."""
    import datasets  # noqa: PLC0415
    from trl import pack_dataset  # noqa: PLC0415

    datasets.disable_progress_bars()
    tokens = [[j * 1000 + k for k in range(n)] for j, n in enumerate(lengths)]
    packed = pack_dataset(datasets.Dataset.from_dict({"input_ids": tokens}), capacity, strategy)
    packs = []
    for row in packed:
        ids, pack = list(row["input_ids"]), []
        for n in row["seq_lengths"]:
            piece, ids = ids[:n], ids[n:]
            pack.append((piece[0] // 1000, piece[0] % 1000, piece[-1] % 1000 + 1))
        packs.append(pack)
    return packs


def torchtune_rows(documents: Documents, capacity: int) -> Iterator[dict[str, Any]]:
    """The packed data set of torchtune, with the mask that its collator makes, in the names of this check."""
    return _torchtune(documents, capacity, split=False)


def torchtune_split_rows(documents: Documents, capacity: int) -> Iterator[dict[str, Any]]:
    """The same, where a document that does not fit goes on in the next pack."""
    return _torchtune(documents, capacity, split=True)


def _torchtune(documents: Documents, capacity: int, *, split: bool) -> Iterator[dict[str, Any]]:
    from torchtune.datasets import PackedDataset  # noqa: PLC0415

    samples = [{"tokens": list(d["input_ids"]), "labels": list(d.get("labels", d["input_ids"]))} for d in documents]
    for pack in PackedDataset(samples, max_seq_len=capacity, split_across_pack=split):
        yield {
            "input_ids": pack["tokens"][None],
            "labels": pack["labels"][None],
            "position_ids": pack["input_pos"][None],
        }
