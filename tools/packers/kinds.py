"""The kinds of functions under test, packers, collators, samplers and streams: their calls and their laws."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from packproof.base.errors import UsageError
from packproof.base.importing import one_line_reason
from packproof.base.wording import plural
from packproof.packers.collation_laws import COLLATION_LAWS
from packproof.packers.collations import read_collation
from packproof.packers.documents import DocumentCase
from packproof.packers.packings import PACKING_LAWS, Declared, PackedDocuments, read_packing
from packproof.packers.refusals import refusal_law
from packproof.packers.streams import read_rows, read_stream

_RANKS = (1, 2, 3)
_WORKERS = 2
Function = Callable[..., Any]
Law = Callable[[Function, DocumentCase, Declared], Iterator[str]]


class NotApplicable(Exception):
    """The law does not apply to this function. The text is the reason."""


@dataclass(frozen=True)
class PackerKind:
    """One kind of function."""

    required: tuple[str, ...]
    """Its parameters."""
    laws: Mapping[str, Law]
    """Its laws by name. Each yields the lines of the first violation at some documents. It raises the errors of the
    function, NoPacks and NotApplicable."""
    one_pack: bool = False
    """Whether a call gets the documents of one pack."""


# How each is called


def _pack(packer: Function, documents: DocumentCase) -> PackedDocuments:
    return read_packing(documents, packer(list(documents.lengths), documents.capacity))


def _sample(make: Function, documents: DocumentCase, rank: int = 0, ranks: int = 1) -> Any:
    return make(list(documents.lengths), documents.capacity, rank, ranks)


def _packs_of_ranks(make: Function, documents: DocumentCase, ranks: int) -> list[PackedDocuments]:
    return [read_packing(documents, _sample(make, documents, rank, ranks)) for rank in range(ranks)]


def _stream(make: Function, documents: DocumentCase) -> Any:
    return make(documents.features(), documents.capacity)


def _read_stream(make: Function, documents: DocumentCase) -> PackedDocuments:
    return read_stream(documents, _stream(make, documents))


# Laws of what is returned


def _packing_law(name: str, call: Callable[[Function, DocumentCase], PackedDocuments]) -> Law:
    def judge(function: Function, documents: DocumentCase, declared: Declared) -> Iterator[str]:
        yield from PACKING_LAWS[name](call(function, documents), declared)

    return judge


def _sampler_law(name: str) -> Law:
    """The law for the packs of all ranks together, for one rank, two and three."""

    def judge(make: Function, documents: DocumentCase, declared: Declared) -> Iterator[str]:
        for ranks in _RANKS if name == "complete" else (1,):
            packs = [pack for packing in _packs_of_ranks(make, documents, ranks) for pack in packing.packs]
            for line in PACKING_LAWS[name](PackedDocuments(documents, _without_repeats(packs, ranks)), declared):
                yield line + (f", with {ranks} ranks" if ranks > 1 else "")
                return

    return judge


def _without_repeats(packs: Sequence[tuple[Any, ...]], ranks: int) -> tuple[tuple[Any, ...], ...]:
    """The packs without repeated ones, as added to fill the last round of ranks: at most one fewer than ranks."""
    distinct = tuple(dict.fromkeys(packs))
    return distinct if len(packs) - len(distinct) < ranks and len(packs) % ranks == 0 else tuple(packs)


def _collation_law(name: str) -> Law:
    def judge(collate: Function, documents: DocumentCase, _: Declared) -> Iterator[str]:
        yield from COLLATION_LAWS[name](read_collation(documents, collate(documents.features())))

    return judge


def _row_law(name: str) -> Law:
    """The law for each pack of a stream that is a collated row."""

    def judge(make: Function, documents: DocumentCase, _: Declared) -> Iterator[str]:
        for number, collation in enumerate(read_rows(documents, _stream(make, documents))):
            if collation is None:
                raise NotApplicable("its packs are no rows: documents, or rows with padding between them")
            lines = list(COLLATION_LAWS[name](collation))
            if lines:
                yield f"pack {number}: {lines[0]}"
                yield from lines[1:]
                return

    return judge


# Laws of several calls


def _equal_shapes(read_batches: Callable[[Function, DocumentCase], Sequence[Any]]) -> Law:
    """Of any documents, in any number, the batches have the same entries of the same shapes."""

    def judge(function: Function, documents: DocumentCase, declared: Declared) -> Iterator[str]:
        if not declared.fixed_shapes:
            raise NotApplicable("nothing says that it makes batches of one shape, as --fixed-shapes does")
        shapes = [_shapes(batch) for batch in read_batches(function, documents)]
        for number, others in enumerate(shapes):
            if others != shapes[0]:
                names = [name for name in {**shapes[0], **others} if shapes[0].get(name) != others.get(name)]
                pair = " and ".join(f"{entry.get(names[0], 'missing')}" for entry in (shapes[0], others))
                yield f"{names[0]} is {pair} in batches 0 and {number}; expected one shape for all"
                return

    return judge


def _shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    """Of the entries that are tensors or lists."""
    entries = getattr(batch, "data", batch)  # transformers' BatchEncoding
    if not isinstance(entries, Mapping):
        raise NotApplicable("its packs are no batches: documents")
    return {str(n): tuple(torch.as_tensor(x).shape) for n, x in entries.items() if isinstance(x, torch.Tensor | list)}


def _batches_of_collator(collate: Function, documents: DocumentCase) -> Sequence[Any]:
    """Of the documents, and of the first alone."""
    features = documents.features()
    return [collate(features[:1]), collate(features)]


def _repeatable(
    make_arguments: Callable[[DocumentCase], Any], call: Callable[[Function, Any, DocumentCase], Any]
) -> Law:
    """The same call gives the same, and changes nothing of its caller's."""

    def judge(function: Function, documents: DocumentCase, _: Declared) -> Iterator[str]:
        arguments = make_arguments(documents)
        result = call(function, arguments, documents)
        result_before = copy.deepcopy(result)
        second_result = call(function, make_arguments(documents), documents)
        if repr(arguments) != repr(make_arguments(documents)):
            yield "it changed its arguments"
        elif repr(result_before) != repr(second_result):
            yield "the same call gave something else"
        elif repr(result_before) != repr(result):
            yield "the second call changed what the first had returned"

    return judge


def _call_packer(packer: Function, lengths: Any, documents: DocumentCase) -> Any:
    value = packer(lengths, documents.capacity)
    return list(value) if isinstance(value, Iterator) else value


def _equal_ranks(make: Function, documents: DocumentCase, _: Declared) -> Iterator[str]:
    """Every rank has equally many packs, its length."""
    for ranks in _RANKS:
        samplers = [_sample(make, documents, rank, ranks) for rank in range(ranks)]
        counts = [len(list(sampler)) for sampler in samplers]
        if len(set(counts)) > 1:
            yield f"{ranks} ranks have {', '.join(map(str, counts))} packs: those with fewer leave the others waiting"
            return
        sizes = [len(sampler) for sampler in samplers if hasattr(sampler, "__len__")]
        if sizes and sizes != counts:
            yield f"its length is {sizes[0]}, and it yields {counts[0]} packs"
            return


def _epochs(make: Function, documents: DocumentCase, declared: Declared) -> Iterator[str]:
    """Another epoch has the same documents."""
    sampler = _sample(make, documents)
    if not hasattr(sampler, "set_epoch"):
        raise NotApplicable("it has no set_epoch")
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        for line in PACKING_LAWS["complete"](read_packing(documents, sampler), declared):
            yield f"{line}, in epoch {epoch}"
            return


def _resumes(
    make: Callable[[Function, DocumentCase], Any], function: Function, documents: DocumentCase, _: Declared
) -> Any:
    """After any pack, a new iterable with the state of the interrupted one yields the same remaining packs."""
    stream = make(function, documents)
    if not (hasattr(stream, "state_dict") and hasattr(stream, "load_state_dict")):
        raise NotApplicable("it has no state_dict and load_state_dict")
    packs = list(map(repr, stream))
    for n_before in dict.fromkeys((0, 1, len(packs) // 2, len(packs))):
        interrupted, resumed = make(function, documents), make(function, documents)
        iterator = iter(interrupted)
        packs_before = [repr(pack) for pack in islice(iterator, n_before)]
        resumed.load_state_dict(copy.deepcopy(interrupted.state_dict()))
        remaining = list(map(repr, resumed))
        if packs_before + remaining != packs:
            is_count_right = len(remaining) == len(packs) - n_before
            yield f"resumed after {n_before} of {plural(len(packs), 'pack')} it yields {len(remaining)} more" + (
                ", of which one is another" if is_count_right else ""
            )
            return


def _workers(make: Function, documents: DocumentCase, declared: Declared) -> Iterator[str]:
    """Two workers of a data loader share the documents: none is lost, none comes twice."""
    dataset = _stream(make, documents)
    if not isinstance(dataset, IterableDataset):
        raise NotApplicable("it is no IterableDataset of torch, which a data loader gives to its workers")
    packs: list[Any] = []
    for number in range(_WORKERS):
        with _in_worker(number, dataset):
            try:
                packs += _stream(make, documents)
            except Exception as error:
                if documents.are_ordinary:
                    raise NotApplicable(f"it refuses {_WORKERS} workers: {one_line_reason(error)}") from error
                raise
    for line in PACKING_LAWS["complete"](read_stream(documents, packs), declared):
        yield f"{line}, with {_WORKERS} workers"
        return


@contextmanager
def _in_worker(number: int, dataset: IterableDataset[Any]) -> Iterator[None]:
    """Make torch's `get_worker_info` answer as in a worker process of a data loader."""
    previous = torch_worker._worker_info
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=_WORKERS, seed=number, dataset=dataset)
    try:
        yield
    finally:
        torch_worker._worker_info = previous


PACKER_KINDS: Mapping[str, PackerKind] = {
    "packer": PackerKind(
        ("lengths", "capacity"),
        {
            **{name: _packing_law(name, _pack) for name in PACKING_LAWS},
            "refusal": refusal_law(_pack),
            "repeated": _repeatable(lambda documents: list(documents.lengths), _call_packer),
        },
    ),
    "collator": PackerKind(
        ("documents",),
        {
            **{name: _collation_law(name) for name in COLLATION_LAWS},
            "shapes": _equal_shapes(_batches_of_collator),
            "repeated": _repeatable(DocumentCase.features, lambda collate, features, _: collate(features)),
        },
        one_pack=True,
    ),
    "sampler": PackerKind(
        ("lengths", "capacity", "rank", "ranks"),
        {
            **{name: _sampler_law(name) for name in PACKING_LAWS},
            "refusal": refusal_law(partial(_packs_of_ranks, ranks=1)),
            "ranks": _equal_ranks,
            "epochs": _epochs,
            "resume": partial(_resumes, _sample),
        },
    ),
    "stream": PackerKind(
        ("documents", "capacity"),
        {
            **{name: _packing_law(name, _read_stream) for name in PACKING_LAWS},
            "refusal": refusal_law(lambda make, documents: list(_stream(make, documents))),
            **{name: _row_law(name) for name in COLLATION_LAWS if name not in PACKING_LAWS},
            "shapes": _equal_shapes(lambda make, documents: list(_stream(make, documents))),
            "resume": partial(_resumes, _stream),
            "workers": _workers,
            "repeated": _repeatable(
                DocumentCase.features, lambda make, features, documents: list(make(features, documents.capacity))
            ),
        },
    ),
}


def kind_of(function: Function) -> str:
    """The kind of a function, by the names of its first parameters; a function of one is a collator.

    Raises UsageError for any other.
    """
    parameters = [p for p in _parameters(function) if p.kind < p.KEYWORD_ONLY]
    names = tuple(p.name for p in parameters)
    for name in ("sampler", "stream", "packer"):
        required = PACKER_KINDS[name].required
        if names[: len(required)] == required:
            return name
    if sum(p.default is p.empty for p in parameters) == 1:
        return "collator"
    forms = ", ".join(f"({', '.join(entry.required)}) of a {name}" for name, entry in PACKER_KINDS.items())
    raise UsageError(f"kind: the function takes ({', '.join(names)}), expected {forms}; name its kind with --kind")


def _parameters(function: Function) -> Sequence[inspect.Parameter]:
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ()
