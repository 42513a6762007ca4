"""Sizes that only a GPU reaches: memory past 2^31 and 2^32 elements, grids of more than 65,535 programs."""

import dataclasses
from collections.abc import Collection, Iterator

from packproof.properties.call import KernelFault, MachineLimit, Placement, Refused
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, golden_case
from packproof.properties.kernel_under_test import KernelUnderTest, Origin
from packproof.properties.laws.names import LAWS
from packproof.properties.laws.property import Illustration, Property, needs_gpu
from packproof.properties.violation import Violation
from packproof.refs.axes import role

FAR: tuple[Placement, ...] = ("beyond 2^31", "beyond 2^32")
MOST_PROGRAMS = 65_535  # of the second and third axis of a grid
MOST_ELEMENTS = 2**31
WIDE = 64  # elements of a token from which on 2^31 of them are no more tokens than a kernel may get


def _size(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """One tensor at a time lies in rows so far apart that the last begins past as many elements: a few tokens, little
    work. Then the pack is repeated until it has more than 65,535 sequences; with wide tokens, until their widest tensor
    has more than 2^31 elements instead. The last repetition computes what the pack computes alone. What the memory of
    the GPU, or the time limit, does not let through is not judged.
    """
    sample = kernel.sample(case)
    if not sum(case.lengths):
        return
    widest = max(sample.inputs[n][:1].numel() for n in sample.inputs if role(sample.axes[n]) == "token")
    if widest >= WIDE:
        yield from _repeated(kernel, sample, MOST_ELEMENTS // (widest * sample.offsets[-1]) + 1, "2^31 elements")
        return
    for name in _movable(kernel, sample) if kernel.domain.allows_strides else ():
        for reach in FAR:
            yield from _far(kernel, sample, name, reach)
    with kernel.optional():
        yield from _repeated(kernel, sample, MOST_PROGRAMS // len(case.lengths) + 1, f"{MOST_PROGRAMS:,} sequences")


def _far(kernel: KernelUnderTest, sample: Sample, name: str, reach: Placement) -> Iterator[Violation]:
    """One tensor with its rows far apart."""
    note = f"with rows of {name.replace('cotangent:', 'the incoming gradient of ')} {reach} elements"
    with kernel.optional(note):
        try:
            got = kernel.run(sample, placement={name: reach})
        except KernelFault as fault:
            if not fault.refuses("stride", "contiguous"):
                yield Violation(text=str(fault), note=note, fault=fault.kind)
                return
            raise Refused(str(fault)) from fault
        plain = kernel.remembered(sample)
        for key, x in got.items():
            yield from kernel.agree(key, x, plain[key], Origin(sample), exact=False, other="nearby", note=note)


def _repeated(kernel: KernelUnderTest, sample: Sample, copies: int, what: str) -> Iterator[Violation]:
    """The pack after that many copies of itself."""
    note = f"after {copies:,} packs like it, more than {what}"
    try:
        got = kernel.run(sample, copies=copies + 1)
    except KernelFault as fault:
        if fault.kind == "hung":
            raise MachineLimit(f"too slow to be judged {note}: {fault}") from fault
        yield Violation(text=str(fault), note=note, fault=fault.kind)
        return
    plain = kernel.remembered(sample)
    for key, x in got.items():
        if not kernel.shared(key, sample):
            yield from kernel.agree(key, x, plain[key], Origin(sample), other="alone", note=note)


def _movable(kernel: KernelUnderTest, sample: Sample) -> list[str]:
    """The tensors along tokens and sequences with rows to move apart, by their names in a call."""
    names = {**{n: n for n in sample.inputs}, **{f"cotangent:{n}": n for n in sample.cotangents if kernel.gradients}}
    packed = {n: name for n, name in names.items() if role(sample.axes[name]) != "shared"}
    return [n for n, name in packed.items() if sample.shape(name)[0] > 2 and all(sample.shape(name)[1:])]


def _whole_chunks(space: Space, _drawn: Collection[Case]) -> list[Case]:
    """A pack of whole chunks, so that one after many lies on the same grid, in the first sizes and in those of a
    model."""
    packed = dataclasses.replace(space, domain=space.domain & Domain.of("slack == 0")) if space.domain else space
    lengths = (1, 0, 2, max(2 * space.chunk - 3, 1))
    small = [golden_case(space, 0, lengths, size, rich=True) for size in space.plain_sizes[:1]]
    # without states, which so many short sequences would fill a GPU with
    wide = [golden_case(space, 0, lengths, size, rich=False) for size in space.model_sizes[:1]]
    return [c for c in map(packed.fit, small + wide) if c]


_PACK = "aaa bbbbb cc"

SIZE = Property(
    "size",
    LAWS["size"],
    _size,
    cases=_whole_chunks,
    skip_reason=needs_gpu("only the memory and the grids of a GPU are that large"),
    decides_mutants=False,
    shares="nothing",
    illustration=Illustration(
        "f(S)[j] does not change past 2³¹ and 2³² elements or 65,535 sequences",
        ("the pack", _PACK),
        ("far away", f"?..? {_PACK}"),
        "machines without the memory, where it reports so",
    ),
)
