"""Properties of sizes that only a GPU reaches: memory behind 2^31 and 2^32 elements, grids of more than 65,535."""

from collections.abc import Iterator

from packproof.properties.call import KernelFault, MachineLimit, Placement, Refused
from packproof.properties.case import Case
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.sample import Sample
from packproof.properties.violation import Violation
from packproof.refs.axes import role

FAR: tuple[Placement, ...] = ("beyond 2^31", "beyond 2^32")
MOST_PROGRAMS = 65_535  # of the second and third axis of a grid
MOST_ELEMENTS = 2**31
WIDE = 64  # elements of a token from which on 2^31 of them are no more tokens than a kernel may get


def size(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Offsets behind 2^31 and 2^32 elements and more than 65,535 sequences give what the same pack gives elsewhere.

    One tensor at a time lies in rows so far apart that the last begins behind as many elements: a few tokens, little
    work. Then the pack is repeated until it has more than 65,535 sequences; with wide tokens, until their widest tensor
    has more than 2^31 elements instead. The last repetition computes what the pack computes alone. What the memory of
    the GPU, or the time limit, does not let through is not judged.
    """
    sample = subject.sample(case)
    if not sum(case.lengths):
        return
    widest = max(sample.inputs[n][:1].numel() for n in sample.inputs if role(sample.axes[n]) == "token")
    if widest >= WIDE:
        yield from _behind(subject, sample, MOST_ELEMENTS // (widest * sample.offsets[-1]) + 1, "2^31 elements")
        return
    for name in _movable(subject, sample) if subject.domain.allows_strides else ():
        for reach in FAR:
            yield from _far(subject, sample, name, reach)
    with subject.optional():
        yield from _behind(subject, sample, MOST_PROGRAMS // len(case.lengths) + 1, f"{MOST_PROGRAMS:,} sequences")


def _far(subject: KernelUnderTest, sample: Sample, name: str, reach: Placement) -> Iterator[Violation]:
    """One tensor with its rows far apart."""
    note = f"with rows of {name.replace('cotangent:', 'the incoming gradient of ')} {reach} elements"
    with subject.optional(note):
        try:
            got = subject.run(sample, placement={name: reach})
        except KernelFault as fault:
            if not fault.refuses("stride", "contiguous"):
                yield Violation(text=str(fault), note=note, fault=fault.kind)
                return
            raise Refused(str(fault)) from fault
        plain = subject.remembered(sample)
        for tensor, x in got.items():
            yield from subject.agree(tensor, x, plain[tensor], sample, exact=False, other="nearby", note=note)


def _behind(subject: KernelUnderTest, sample: Sample, copies: int, what: str) -> Iterator[Violation]:
    """The pack behind that many copies of itself."""
    note = f"behind {copies:,} packs like it, more than {what}"
    try:
        got = subject.run(sample, copies=copies + 1)
    except KernelFault as fault:
        if fault.kind == "hung":
            raise MachineLimit(f"too slow to be judged {note}: {fault}") from fault
        yield Violation(text=str(fault), note=note, fault=fault.kind)
        return
    plain = subject.remembered(sample)
    for tensor, x in got.items():
        if not subject.shared(tensor, sample):
            yield from subject.agree(tensor, x, plain[tensor], sample, other="alone", note=note)


def _movable(subject: KernelUnderTest, sample: Sample) -> list[str]:
    """The tensors along tokens and sequences with rows to move apart, by their names in a call."""
    names = {**{n: n for n in sample.inputs}, **{f"cotangent:{n}": n for n in sample.cotangents if subject.gradients}}
    packed = {n: name for n, name in names.items() if role(sample.axes[name]) != "shared"}
    return [n for n, name in packed.items() if sample.shape(name)[0] > 2 and all(sample.shape(name)[1:])]
