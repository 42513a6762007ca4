"""Properties of the call: the same bits every time, unchanged inputs, any strides, any form of the metadata."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat

import torch

from packproof.properties.call import KernelFault, Placement, Refused
from packproof.properties.cases.case import Case
from packproof.properties.cases.layouts import DEFAULT_CHUNK
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import CROWD, Space, golden_case
from packproof.properties.comparison import Comparison
from packproof.properties.kernel_under_test import KernelUnderTest, Origin, Tensors
from packproof.properties.laws.names import LAWS
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.tensor_key import TensorKey
from packproof.properties.violation import Violation
from packproof.refs.axes import SLOTS, role

_PLACEMENTS: tuple[Placement, ...] = ("transposed", "sliced", "expanded")
_PACK = "aaa bbbbb cc"


def _determinism(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """The same bits for a kernel that promises to be deterministic, else within the budget."""
    sample = kernel.sample(case)
    first = kernel.remembered(sample)
    note = "after another layout in the same cu_seqlens tensor"
    edited = list(_differ(kernel, sample, first, kernel.rerun(case, lambda: _edited(kernel, case, note)), note))
    if edited:
        yield from _repeated(kernel, sample, first, "in a second run")
        yield from edited
    chunk = kernel.promises.chunk or DEFAULT_CHUNK
    if len(case.lengths) == 1 and case.n_tokens > 2 * chunk:  # seldom: a new process has to start, compile and tune
        kernel.runner.restart()
        yield from _repeated(kernel, sample, first, "in a new process")


def _edited(kernel: KernelUnderTest, case: Case, note: str) -> Tensors:
    """The results of a call after the cu_seqlens tensor of another layout was edited in place."""
    if other := _other_layout(kernel, case):
        kernel.run(kernel.sample(other), gradients=False, note="with other boundaries")
    return kernel.run(kernel.sample(case), note=note, edit_metadata=True)


def _other_layout(kernel: KernelUnderTest, case: Case) -> Case | None:
    """A case with other boundaries, but as many rows and sequences; None where the kernel's domain has none.

    One sequence becomes two.
    """
    n = len(case.lengths)
    if n == 0:
        return case

    def layouts(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
        rows = sum(lengths) + case.slack
        yield rows // 2, *(0,) * (n - 2), rows - rows // 2
        yield rows, *(0,) * (n - 1)
        yield *(1,) * (n - 1), rows - n + 1
        yield rows - n + 1, *(1,) * (n - 1)
        yield *lengths[1:-1], lengths[0], lengths[-1] + case.slack

    keys = repeat(None) if case.key_lengths is None else layouts(case.key_lengths)
    moved = zip(layouts(case.lengths), keys, strict=False)
    others = (case.replace(lengths=a, key_lengths=b, slack=0) for a, b in moved if min(*a, *(b or a)) >= 0)
    return next((o for o in others if o.lengths != case.lengths and kernel.domain.allows(kernel.op, o)), None)


def _repeated(kernel: KernelUnderTest, sample: Sample, first: Tensors, note: str) -> Iterator[Violation]:
    yield from _differ(kernel, sample, first, kernel.run(sample, note=note), note)


def _differ(kernel: KernelUnderTest, sample: Sample, first: Tensors, again: Tensors, note: str) -> Iterator[Violation]:
    exact = kernel.promises.deterministic
    for key, x in again.items():
        allowed = None if exact else kernel.budget(key, sample) * 2
        rows = kernel.row_map(key, sample)
        compared = Comparison(key, first[key], x, rows, allowed, other="again", note=note)
        for violation in compared.violations():
            yield kernel.beside_the_reference(violation, sample)


def _with_crowds(space: Space, drawn: Collection[Case]) -> list[Case]:
    """The drawn cases; for a deterministic kernel also packs so large that every program of a GPU adds to one sum."""
    sizes = space.model_sizes[:1] if space.promises.deterministic else ()
    crowds = [golden_case(space, 0, CROWD, size, rich=rich) for size in sizes for rich in (True, False)]
    return [*drawn, *dict.fromkeys(crowds)]


DETERMINISM = Property(
    "determinism",
    LAWS["determinism"],
    _determinism,
    cases=_with_crowds,
    dtype_independent=True,
    illustration=Illustration(
        "f(S) = f(S)   again, after other shapes, in a new process, with cu_seqlens edited in place",
        ("a call", _PACK),
        ("the same call", _PACK),
        "bugs that give the same result every time",
    ),
)


def _memory(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """New allocations of the kernel start as NaN: a row not written, or read too early, shows."""
    sample = kernel.sample(case)
    note = "with every new buffer filled with NaN"
    got, result = kernel.results(sample, guard=True, note=note)
    for name, before in {**sample.inputs, **sample.metadata}.items():
        if _changed(result.inputs_after[name], before):
            text = f"{name} was changed by the kernel: inputs are the caller's"
            yield Violation(tensor=TensorKey(name, "input"), text=text)
    for name, before in sample.cotangents.items():
        after = result.inputs_after.get(f"cotangent:{name}")  # None in a run without gradients
        if after is not None and _changed(after, before):
            text = (
                f"the incoming gradient of {name} was changed by the kernel: autograd hands the same tensor to others"
            )
            yield Violation(tensor=TensorKey(name), text=text)
    want, plain = kernel.expect(sample), kernel.remembered(sample)
    for key, x in got.items():
        wanted, rows = want.values[key], kernel.row_map(key, sample)
        unwritten = torch.where(torch.isfinite(x), wanted.to(x.dtype), x)
        yield from Comparison(key, unwritten, wanted, rows, want.budgets[key], note=note).violations()
        exact = kernel.promises.deterministic
        yield from kernel.agree(key, x, plain[key], Origin(sample), exact=exact, other="before", note=note)


MEMORY = Property(
    "memory",
    LAWS["memory"],
    _memory,
    dtype_independent=True,
    shares="reference",
    illustration=Illustration(
        "S is the same after f(S);   f(S) = f(S) with all new memory NaN;   canaries around it stay",
        ("a call", _PACK),
        ("in NaN memory", f"# {_PACK} #"),
        "incorrect values that are written",
    ),
)


def _changed(after: torch.Tensor, before: torch.Tensor) -> bool:
    return after.shape != before.shape or not torch.equal(_bytes(after), _bytes(before))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def _strides(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    placement = _PLACEMENTS[case.seed % len(_PLACEMENTS)]
    sample = kernel.sample(case)
    placed = _expandable(sample) if placement == "expanded" else sample
    want, note = kernel.remembered(placed), f"with {placement} tensors"
    with kernel.optional(note):
        try:
            got = kernel.run(placed, placement=placement)
        except KernelFault as fault:
            if not fault.refuses("stride", "contiguous"):
                yield Violation(text=str(fault), note=note, fault=fault.kind)
                return
            raise Refused(str(fault)) from fault
        for key, x in got.items():
            yield from kernel.agree(key, x, want[key], Origin(placed), exact=False, other="contiguous", note=note)


def _unless_contiguous(space: Space, drawn: Collection[Case]) -> list[Case]:
    """The drawn cases; none if the kernel's domain has contiguous tensors only."""
    return list(drawn) if space.domain.allows_strides else []


STRIDES = Property(
    "strides",
    LAWS["strides"],
    _strides,
    cases=_unless_contiguous,
    dtype_independent=True,
    varies_with_seed=True,
    illustration=Illustration(
        "f(S) = f(S transposed, sliced or expanded),   or an error that names strides",
        ("contiguous", _PACK),
        ("sliced", "a.a.a. b.b.b.b.b. c.c."),
        "bugs that occur with contiguous tensors too",
    ),
)


def _expandable(sample: Sample) -> Sample:
    """The sample with equal incoming gradients along tokens, as of a sum: a stride of 0 holds the same values."""
    expanded = {n: torch.ones_like(c) if role(sample.axes[n]) == "token" else c for n, c in sample.cotangents.items()}
    return dataclasses.replace(sample, cotangents=expanded)


def _metadata(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    want = kernel.remembered(sample)
    wide = dataclasses.replace(sample, index_dtype=torch.int64)
    with kernel.optional(note := "with int64 offsets"):
        try:
            got = kernel.run(wide)
        except KernelFault as fault:
            if not fault.refuses("int32", "int64", "dtype"):
                yield Violation(text=str(fault), note=note, fault=fault.kind)
            else:
                raise Refused(str(fault)) from fault
        else:
            for key, x in got.items():
                yield from kernel.agree(key, x, want[key], Origin(sample), other="int32", note=note)
    with kernel.optional("with empty sequences put in"):
        yield from _with_empty(kernel, case, sample, want)
    nothing = sample.select([])
    with kernel.optional(note := "with zero sequences"):
        for key, x in kernel.run(nothing, note=note).items():
            pool = kernel.op.pool
            wanted = nothing.inputs[pool[1]] if pool and key.name == pool[2] else torch.zeros_like(x)
            yield from Comparison(
                key, x, wanted, kernel.row_map(key, nothing), other="expected", note=note
            ).violations()


METADATA = Property(
    "metadata",
    LAWS["metadata"],
    _metadata,
    dtype_independent=True,
    judges_empty_packs=True,
    of_the_op="The reference has to read no more than the rows of each sequence, from offsets of either dtype.",
    illustration=Illustration(
        "f(S) = f(S with int64 offsets) = f(S with empty sequences put in);   f of nothing is nothing",
        ("the pack", _PACK),
        ("empty ones put in", " aaa  bbbbb  cc "),
        "offsets that no call may have",
    ),
)


def _with_empty(kernel: KernelUnderTest, case: Case, sample: Sample, want: Tensors) -> Iterator[Violation]:
    """Compare with a pack of the same tokens and empty sequences first, last and in between."""
    n = len(case.lengths)
    if n == 0 or not kernel.domain.allows_length(0):
        return
    keys = None if case.key_lengths is None else (*case.key_lengths, 0)
    wide = kernel.sample(case.replace(lengths=(*case.lengths, 0), key_lengths=keys, slack=0))
    spread = [j for i in range(n) for j in (n, i)] + [n, n]
    sizes = {**wide.sizes, SLOTS: sample.sizes[SLOTS]} if kernel.op.pool else wide.sizes
    padded = dataclasses.replace(wide, inputs=dict(wide.inputs), cotangents=dict(wide.cotangents), sizes=sizes)
    for kind, source in (("inputs", sample.inputs), ("cotangents", sample.cotangents)):
        for name, x in source.items():
            if role(sample.axes[name]) == "token":
                getattr(padded, kind)[name] = x[: sample.offsets_of(sample.axes[name])[-1]]
            elif role(sample.axes[name]) == "sequence":
                getattr(padded, kind)[name] = torch.cat([x, getattr(wide, kind)[name][n:]])
            else:
                getattr(padded, kind)[name] = x
    if kernel.op.pool:
        padded = padded.in_slots([*sample.slots, -1])
    note = "with empty sequences put in"
    got = kernel.run(padded.select(spread), note=note)
    for key, x in got.items():
        rows = x[1 : 2 * n : 2] if role(sample.axes[key.name]) == "sequence" else x
        kept = want[key][: len(rows)]
        # order and tokens are unchanged, hence also the chunks of the pack and the budget
        yield from kernel.agree(key, rows, kept, Origin(sample), other="before", note=note)
