"""Properties of the call: the same bits every time, unchanged inputs, any strides, any form of the metadata."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat

import torch

from packproof.base.axes import SLOTS, role
from packproof.base.law_names import LAWS
from packproof.properties.calling.call import Placement, Result
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.layouts import DEFAULT_CHUNK
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import CROWDED_LENGTHS, Space, golden_case
from packproof.properties.judgement.comparison import Comparison, Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.violation import Violation

STRIDES_REFUSED = ("stride", "contiguous")  # words of an error that declines the strides of a tensor
_PLACEMENTS: tuple[Placement, ...] = ("transposed", "sliced", "expanded")
_PACK = "aaa bbbbb cc"
PERTURBED_CALLS = 64


def _determinism(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """The same bits for a kernel that promises to be deterministic, else within the budget."""
    sample = kernel.sample(case)
    baseline = kernel.cached_run(sample)
    note = "after another layout in the same cu_seqlens tensor"
    repeat_results = kernel.cached_rerun(case, lambda: _run_with_edited_metadata(kernel, case, note))
    violations = list(_compare_runs(kernel, sample, baseline, repeat_results, note))
    if violations:
        yield from _compare_repeat(kernel, sample, baseline, "in a second run")
        yield from violations
    chunk = kernel.promises.chunk or DEFAULT_CHUNK
    if len(case.lengths) == 1 and case.n_tokens > 2 * chunk:  # seldom: a new process has to start, compile and tune
        kernel.runner.restart()
        yield from _compare_repeat(kernel, sample, baseline, "in a new process")


def _run_with_edited_metadata(kernel: KernelUnderTest, case: Case, note: str) -> Tensors:
    """The results of a call after the cu_seqlens tensor of another layout was edited in place."""
    if other_case := _case_with_other_boundaries(kernel, case):
        kernel.run(kernel.sample(other_case), gradients=False, note="with other boundaries")
    return kernel.run(kernel.sample(case), note=note, edit_metadata=True)


def _case_with_other_boundaries(kernel: KernelUnderTest, case: Case) -> Case | None:
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
    length_pairs = zip(layouts(case.lengths), keys, strict=False)
    candidates = (case.replace(lengths=a, key_lengths=b, slack=0) for a, b in length_pairs if min(*a, *(b or a)) >= 0)
    return next(
        (
            candidate
            for candidate in candidates
            if (candidate.lengths, candidate.key_lengths) != (case.lengths, case.key_lengths)
            and kernel.domain.allows(kernel.op, candidate)
        ),
        None,
    )


def _compare_repeat(kernel: KernelUnderTest, sample: Sample, baseline: Tensors, note: str) -> Iterator[Violation]:
    yield from _compare_runs(kernel, sample, baseline, kernel.run(sample, note=note), note)


def _compare_runs(
    kernel: KernelUnderTest, sample: Sample, baseline: Tensors, repeat_results: Tensors, note: str
) -> Iterator[Violation]:
    exact = kernel.promises.deterministic
    for key, x in repeat_results.items():
        budget = None if exact else kernel.budget(key, sample) * 2
        rows = kernel.row_map(key, sample)
        comparison = Comparison(key, baseline[key], x, rows, budget, baseline_name="again", note=note)
        for violation in comparison.violations():
            yield kernel.with_reference_value(violation, sample)


def _cases_with_crowds(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The drawn cases; for a deterministic kernel also packs so large that every program of a GPU adds to one sum."""
    return [*drawn_cases, *(_crowds(space) if space.promises.deterministic else ())]


def _crowds(space: Space) -> list[Case]:
    sizes = space.model_sizes[:1]
    crowds = [golden_case(space, 0, CROWDED_LENGTHS, size, rich=rich) for size in sizes for rich in (True, False)]
    return list(dict.fromkeys(crowds))


DETERMINISM = Property(
    "determinism",
    LAWS["determinism"],
    _determinism,
    cases=_cases_with_crowds,
    dtype_independent=True,
    illustration=Illustration(
        "f(S) = f(S)   again, after other shapes, in a new process, with cu_seqlens edited in place",
        ("a call", _PACK),
        ("the same call", _PACK),
        "bugs that give the same result every time",
    ),
)


def _races(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Compare a plain call with the farthest one under perturbation."""
    sample = kernel.sample(case)
    baseline = kernel.cached_run(sample)
    tensors, result = kernel.run_with_result(
        sample, mode="perturbed", repeats=PERTURBED_CALLS, note="in calls under perturbation"
    )
    kernel.perturbed_calls[RACES.name] += result.perturbed_calls
    note = f"in {result.different_calls} of {result.perturbed_calls} calls under perturbation"
    yield from _compare_runs(kernel, sample, baseline, tensors, note)


def _races_skip_reason(space: Space) -> str:
    if torch.version.hip:
        return "the blocks that spin beside a kernel are in PTX, and AMD's GPUs do not run it"
    return "" if space.on_gpu else "warps and blocks run beside each other on a GPU alone: use --device cuda"


RACES = Property(
    "races",
    LAWS["races"],
    _races,
    cases=lambda space, drawn_cases: [*drawn_cases, *_crowds(space)],
    skip_reason=_races_skip_reason,
    decides_mutants=False,
    shares="nothing",
    illustration=Illustration(
        "f(S) = f(S)   with pauses in f, blocks that spin beside it and traffic in memory, many times",
        ("a call", _PACK),
        ("a call, delayed", _PACK),
        "races that no delay at a barrier, a load or a store shows; in kernels that no compiler in its reach has made, "
        "those that only pauses inside them show",
        "Judged on request: `--property races`. Each case is called 64 times. Kernels that Triton compiles, or "
        "packproof from CUDA C++, pause at barriers, waits, loads and stores, each warp at others: their PTX is "
        "changed. Before each call comes one with half of each value: what memory holds is another answer.",
    ),
)


def _memory(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """New allocations of the kernel start as NaN: a row not written, or read too early, shows."""
    sample = kernel.sample(case)
    note = "with every new buffer filled with NaN"
    actual, result = kernel.run_with_result(sample, guard=True, note=note)
    yield from _changes(sample, result)
    answer, plain_results = kernel.expect(sample), kernel.cached_run(sample)
    for key, x in actual.items():
        expected, rows = answer.values[key], kernel.row_map(key, sample)
        unwritten = torch.where(torch.isfinite(x), expected.to(x.dtype), x)
        yield from Comparison(key, unwritten, expected, rows, answer.budgets[key], note=note).violations()
        exact, note_of_switch = kernel.promises.deterministic, f"{note}, and torch's deterministic algorithms on"
        yield from kernel.agree(
            key, x, plain_results[key], Origin(sample), exact=exact, other="before", note=note_of_switch
        )


def _changes(sample: Sample, result: Result) -> Iterator[Violation]:
    """Inputs that the kernel has changed, and outputs and incoming gradients that its backward pass has changed."""
    for name, before in {**sample.passed_inputs, **sample.metadata}.items():
        after = result.inputs_after[name]
        at_return = result.inputs_at_return.get(name, after)
        if change := _change(before, at_return, after):
            text = f"{name} was changed {change}: inputs are the caller's"
            yield Violation(tensor=TensorKey(name, "input"), text=text)
    for name, after in result.outputs_after.items():
        if _bytes_differ(after, result.outputs[name]):
            text = f"{name} was changed during the backward pass: what a kernel has returned is the caller's"
            yield Violation(tensor=TensorKey(name), text=text)
    for name, before in sample.cotangents.items():
        incoming = result.inputs_after.get(f"cotangent:{name}")  # None in a run without gradients
        if incoming is not None and _bytes_differ(incoming, before):
            text = (
                f"the incoming gradient of {name} was changed by the kernel: autograd hands the same tensor to others"
            )
            yield Violation(tensor=TensorKey(name), text=text)


def _change(before: torch.Tensor, at_return: torch.Tensor, after: torch.Tensor) -> str:
    """When an input was changed; "" if it never was."""
    if _bytes_differ(at_return, before):
        return "by the kernel" if _bytes_differ(after, before) else "by the kernel, and restored in the backward pass"
    return "during the backward pass" if _bytes_differ(after, before) else ""


MEMORY = Property(
    "memory",
    LAWS["memory"],
    _memory,
    dtype_independent=True,
    shares="reference",
    illustration=Illustration(
        "S is the same after f(S), f(S) after f′(S);   f(S) = f(S) with all new memory NaN;   canaries around it stay",
        ("a call", _PACK),
        ("in NaN memory", f"# {_PACK} #"),
        "incorrect values that are written",
        note=(
            "Outputs are copied when the kernel returns, before its backward pass: every property judges these copies. "
            "Outputs and inputs that the backward pass changes, or restores, fail here."
        ),
    ),
)


def _bytes_differ(after: torch.Tensor, before: torch.Tensor) -> bool:
    return after.shape != before.shape or not torch.equal(_bytes(after), _bytes(before))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    # an axis of stride 1 first: one column of a wider tensor is contiguous, but its stride takes no view as bytes
    return x.contiguous().unsqueeze(-1).view(torch.uint8)


def _strides(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    placement = _PLACEMENTS[case.seed % len(_PLACEMENTS)]
    sample = kernel.sample(case)
    placed_sample = _with_equal_cotangents(sample) if placement == "expanded" else sample
    expected, note = kernel.cached_run(placed_sample), f"with {placement} tensors"
    with kernel.optional(note, words=STRIDES_REFUSED):
        actual = kernel.run(placed_sample, placement=placement, note=note)
        for key, x in actual.items():
            yield from kernel.agree(
                key, x, expected[key], Origin(placed_sample), exact=False, other="contiguous", note=note
            )


def _strided_cases(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The drawn cases; none if the kernel's domain has contiguous tensors only."""
    return list(drawn_cases) if space.domain.allows_strides else []


STRIDES = Property(
    "strides",
    LAWS["strides"],
    _strides,
    cases=_strided_cases,
    dtype_independent=True,
    varies_with_seed=True,
    illustration=Illustration(
        "f(S) = f(S transposed, sliced or expanded),   or an error that names strides",
        ("contiguous", _PACK),
        ("sliced", "a.a.a. b.b.b.b.b. c.c."),
        "bugs that occur with contiguous tensors too",
    ),
)


def _with_equal_cotangents(sample: Sample) -> Sample:
    """The sample with equal incoming gradients along tokens, as of a sum: a stride of 0 holds the same values."""
    equal_cotangents = {
        n: torch.ones_like(c) if role(sample.axes[n]) == "token" else c for n, c in sample.cotangents.items()
    }
    return dataclasses.replace(sample, cotangents=equal_cotangents)


def _metadata(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    expected = kernel.cached_run(sample)
    int64_sample = dataclasses.replace(sample, index_dtype=torch.int64)
    with kernel.optional(note := "with int64 offsets", words=("int32", "int64", "dtype")):
        for key, x in kernel.run(int64_sample, note=note).items():
            yield from kernel.agree(key, x, expected[key], Origin(sample), other="int32", note=note)
    with kernel.optional("with empty sequences put in"):
        yield from _compare_with_empty_sequences(kernel, case, sample, expected)
    empty_pack = sample.select([])
    with kernel.optional(note := "with zero sequences"):
        for key, x in kernel.run(empty_pack, note=note).items():
            pool = {after: before for before, after in kernel.op.pools}.get(key.name)
            expected_value = empty_pack.inputs[pool] if pool else torch.zeros_like(x)
            yield from Comparison(
                key, x, expected_value, kernel.row_map(key, empty_pack), baseline_name="expected", note=note
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


def _compare_with_empty_sequences(
    kernel: KernelUnderTest, case: Case, sample: Sample, expected: Tensors
) -> Iterator[Violation]:
    """Compare with a pack of the same tokens and empty sequences first, last and in between."""
    n = len(case.lengths)
    if n == 0 or not kernel.domain.allows_length(0):
        return
    keys = None if case.key_lengths is None else (*case.key_lengths, 0)
    extended = kernel.sample(case.replace(lengths=(*case.lengths, 0), key_lengths=keys, slack=0))
    order = [j for i in range(n) for j in (n, i)] + [n, n]
    sizes = {**extended.sizes, SLOTS: sample.sizes[SLOTS]} if kernel.op.pool else extended.sizes
    padded = dataclasses.replace(
        extended, inputs=dict(extended.inputs), cotangents=dict(extended.cotangents), sizes=sizes
    )
    for kind, source in (("inputs", sample.inputs), ("cotangents", sample.cotangents)):
        for name, x in source.items():
            if role(sample.axes[name]) == "token":
                getattr(padded, kind)[name] = x[: sample.offsets_of(sample.axes[name])[-1]]
            elif role(sample.axes[name]) == "sequence":
                getattr(padded, kind)[name] = torch.cat([x, getattr(extended, kind)[name][n:]])
            else:
                getattr(padded, kind)[name] = x
    if kernel.op.pool and not kernel.op.slots_of_tokens:
        padded = padded.in_slots([*sample.slots, -1])
    note = "with empty sequences put in"
    actual = kernel.run(padded.select(order), note=note)
    for key, x in actual.items():
        rows = x[1 : 2 * n : 2] if role(sample.axes[key.name]) == "sequence" else x
        expected_rows = expected[key][: len(rows)] if rows.ndim else expected[key]
        # order and tokens are unchanged, hence also the chunks of the pack and the budget
        yield from kernel.agree(key, rows, expected_rows, Origin(sample), other="before", note=note)
