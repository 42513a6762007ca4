"""Properties of the call: the same bits every time, memory left as it was, any strides, any form of the metadata."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from packproof.properties.call import KernelFault, Placement, Refused
from packproof.properties.case import Case
from packproof.properties.kernel_under_test import KernelUnderTest, Tensors
from packproof.properties.layouts import DEFAULT_CHUNK
from packproof.properties.sample import Sample
from packproof.properties.violation import Violation, identical, within
from packproof.refs.axes import role

_PLACEMENTS: tuple[Placement, ...] = ("transposed", "sliced", "expanded")


def determinism(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """The same call gives the same result: again, after other shapes, in a new process, with metadata edited in place.

    The same bits where the kernel promises to be deterministic, else within the budget.
    """
    sample = subject.sample(case)
    first = subject.remembered(sample)
    if other := _other_layout(subject, case):
        subject.run(
            subject.sample(other), gradients=False, note="with other boundaries"
        )  # this cu_seqlens is edited next
    note = "after another layout in the same cu_seqlens tensor"
    edited = list(_repeated(subject, sample, first, note, edit_metadata=True))
    if edited:
        yield from _repeated(subject, sample, first, "in a second run")
        yield from edited
    chunk = subject.promises.chunk or DEFAULT_CHUNK
    if len(case.lengths) == 1 and case.n_tokens > 2 * chunk:  # a new process starts, compiles and tunes: seldom
        subject.runner.restart()
        yield from _repeated(subject, sample, first, "in a new process")


def _other_layout(subject: KernelUnderTest, case: Case) -> Case | None:
    """Another layout of as many rows, and of as many sequences: only the boundaries differ. Of one sequence, two.

    The first of a few that the kernel's domain has, or None.
    """
    rows, n = case.n_tokens + case.slack, len(case.lengths)
    if n == 0:
        return case
    layouts = (
        (rows // 2, *(0,) * (n - 2), rows - rows // 2),
        (rows, *(0,) * (n - 1)),
        (*(1,) * (n - 1), rows - n + 1),
        (rows - n + 1, *(1,) * (n - 1)),
        (*case.lengths[1:-1], case.lengths[0], case.lengths[-1] + case.slack),
    )
    others = (case.replace(lengths=moved, slack=0) for moved in layouts if moved != case.lengths and min(moved) >= 0)
    return next((other for other in others if subject.domain.allows(subject.op, other)), None)


def _repeated(subject: KernelUnderTest, sample: Sample, first: Tensors, note: str, **flags: Any) -> Iterator[Violation]:
    for name, x in subject.run(sample, note=note, **flags).items():
        frame = subject.frame(name, sample)
        if subject.promises.deterministic:
            found = identical(name, first[name], x, frame, other="again", note=note)
        else:
            allowed = subject.budget(name, sample, pieces=0) * 2
            found = within(name, first[name], x, allowed, frame, other="again", note=note)
        for violation in found:
            yield subject.beside_the_reference(violation, sample)


def memory(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """What comes in stays as it is, every output row is written, nothing is read before it is written, canaries stay
    whole.

    What the kernel allocates starts as NaN, so that a row which it does not write, or reads too early, shows.
    """
    sample = subject.sample(case)
    note = "with every new buffer filled with NaN"
    got, result = subject.results(sample, guard=True, note=note)
    for name, before in {**sample.inputs, "cu_seqlens": sample.cu_seqlens}.items():
        if _changed(result.inputs_after[name], before):
            yield Violation(tensor=name, text=f"{name} was changed by the kernel: inputs are the caller's")
    for name, before in sample.cotangents.items():
        after = result.inputs_after.get(f"cotangent:{name}")  # none where no gradient was asked for
        if after is not None and _changed(after, before):
            text = (
                f"the incoming gradient of {name} was changed by the kernel: autograd hands the same tensor to others"
            )
            yield Violation(tensor=name, text=text)
    want, plain = subject.expect(sample), subject.remembered(sample)
    for name, x in got.items():
        frame = subject.frame(name, sample)
        unwritten = torch.where(torch.isfinite(x), want.values[name].to(x.dtype), x)
        yield from within(name, unwritten, want.values[name], want.budgets[name], frame, note=note)
        exact = subject.promises.deterministic
        yield from subject.agree(name, x, plain[name], sample, exact=exact, other="before", note=note)


def _changed(after: torch.Tensor, before: torch.Tensor) -> bool:
    return after.shape != before.shape or not torch.equal(_bytes(after), _bytes(before))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def strides(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Transposed, sliced and expanded inputs and incoming gradients give the same result, or a refusal saying why."""
    placement = _PLACEMENTS[case.seed % len(_PLACEMENTS)]
    sample = subject.sample(case)
    placed = _expandable(sample) if placement == "expanded" else sample
    want, note = subject.remembered(placed), f"with {placement} tensors"
    with subject.optional(note):
        try:
            got = subject.run(placed, placement=placement)
        except KernelFault as fault:
            if not fault.refuses("stride", "contiguous"):
                yield Violation(text=str(fault), note=note, fault=fault.kind)
                return
            raise Refused(str(fault)) from fault
        for name, x in got.items():
            yield from subject.agree(name, x, want[name], placed, exact=False, other="contiguous", note=note)


def _expandable(sample: Sample) -> Sample:
    """Rows made equal along tokens, like the incoming gradient of a sum: a stride of 0 holds the same values."""
    expanded = {n: torch.ones_like(c) if role(sample.axes[n]) == "token" else c for n, c in sample.cotangents.items()}
    return dataclasses.replace(sample, cotangents=expanded)


def metadata(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """int64 offsets, empty sequences anywhere and more slack change nothing; zero tokens and zero sequences work."""
    sample = subject.sample(case)
    want = subject.remembered(sample)
    wide = dataclasses.replace(sample, index_dtype=torch.int64)
    with subject.optional(note := "with int64 offsets"):
        try:
            got = subject.run(wide)
        except KernelFault as fault:
            if not fault.refuses("int32", "int64", "dtype"):
                yield Violation(text=str(fault), note=note, fault=fault.kind)
            else:
                raise Refused(str(fault)) from fault
        else:
            for name, x in got.items():
                yield from subject.agree(name, x, want[name], sample, other="int32", note=note)
    with subject.optional("with empty sequences put in"):
        yield from _with_empty(subject, case, sample, want)
    nothing = sample.select([])
    with subject.optional(note := "with zero sequences"):
        for name, x in subject.run(nothing, note=note).items():
            zero = torch.zeros_like(x)
            yield from identical(name, x, zero, subject.frame(name, nothing), other="expected", note=note)


def _with_empty(subject: KernelUnderTest, case: Case, sample: Sample, want: Tensors) -> Iterator[Violation]:
    """The same tokens with empty sequences first, last and in between."""
    n = len(case.lengths)
    if n == 0 or not subject.domain.allows_length(0):
        return
    wide = subject.sample(case.replace(lengths=(*case.lengths, 0), slack=0))
    spread = [j for i in range(n) for j in (n, i)] + [n, n]
    padded = dataclasses.replace(wide, inputs=dict(wide.inputs), cotangents=dict(wide.cotangents))
    for kind, source in (("inputs", sample.inputs), ("cotangents", sample.cotangents)):
        for name, x in source.items():
            if role(sample.axes[name]) == "token":
                getattr(padded, kind)[name] = x[: sample.offsets[-1]]
            elif role(sample.axes[name]) == "sequence":
                getattr(padded, kind)[name] = torch.cat([x, getattr(wide, kind)[name][n:]])
            else:
                getattr(padded, kind)[name] = x
    note = "with empty sequences put in"
    got = subject.run(padded.select(spread), note=note)
    for name, x in got.items():
        axes = subject.frame(name, sample).axes
        rows = x[1 : 2 * n : 2] if role(axes) == "sequence" else x
        kept = want[name][: len(rows)]
        # the sequences keep their order and tokens, hence the chunks of the pack and the budget
        yield from subject.agree(name, rows, kept, sample, other="before", note=note)
