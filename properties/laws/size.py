"""Sizes for a GPU only: memory past 2^32 elements, 131,072 sequences, 65,536 chunks of 256 tokens."""

import dataclasses
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from packproof.base.axes import role
from packproof.base.errors import KernelFault
from packproof.base.law_names import LAWS
from packproof.base.reductions import MAXIMUM, MEAN_OVER_SEQUENCES, MEAN_OVER_TOKENS
from packproof.properties.calling.call import MachineLimit, OutsideDomain, Placement, SlowCompilation, TooSlow
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, golden_case
from packproof.properties.judgement.comparison import Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.call_contract import STRIDES_REFUSED
from packproof.properties.laws.large_calls import Limits, require_time
from packproof.properties.laws.property import Illustration, Property, needs_gpu
from packproof.properties.laws.violation import Violation

FAR_PLACEMENTS: tuple[Placement, ...] = ("beyond 2^31", "beyond 2^32")
WIDE_TOKEN = 64  # elements of a token: at this width 2^32 elements are a realistic number of tokens
SHORT_HISTORY = 16


@dataclass(frozen=True)
class _Part:
    """A part of the property: one way to make a pack large."""

    change: str
    """In the notes of its violations."""
    check: Callable[[], Iterator[Violation]]


def _size(kernel: KernelUnderTest, case: Case, limits: Limits) -> Iterator[Violation]:
    """Each case goes past some limits.

    A small pack: one tensor at a time has its rows so far apart that the last begins past 2^31 and 2^32 elements. Then
    the pack is repeated past 131,071 sequences and 65,535 chunks of 256 tokens. Then one sequence grows past 65,535
    chunks by zeros before its tokens, if a few zeros change nothing.

    Wide tokens, or short sequences with wide states, are repeated past 2^32 elements. Every copy of a pack has to
    compute the same as the pack alone. Where the memory of the GPU is too small for the backward pass, the values are
    judged alone. Calls beyond the memory or the time are not judged, and the verdict says which.
    """
    if not sum(case.lengths):
        return
    parts = [part for part in _parts(kernel, case, limits) if not kernel.change or part.change in kernel.change]
    if not parts:
        raise OutsideDomain(f"size has no such part at this case: {kernel.change}")
    for part in parts:
        yield from part.check()


def _parts(kernel: KernelUnderTest, case: Case, limits: Limits) -> Iterator[_Part]:
    sample = kernel.sample(case)
    state = kernel.op.carry[0] if kernel.op.carry else ""
    if _max_elements_per_token(sample) < WIDE_TOKEN:
        yield from _parts_of_small_pack(kernel, sample, limits)
        if kernel.op.carry and not kernel.promises.cumsum:
            note = f"after {limits.history:,} tokens of zeros"
            without_state = kernel.sample(case.without(state))
            yield _Part(note, partial(_check_long_sequence, kernel, without_state, limits, note))
        return
    elements, owner = _max_elements_per_token(sample) * sample.offsets[-1], "of a token's tensor"
    if state in sample.inputs:
        elements, owner = sample.inputs[state].numel(), f"of {state}"
    yield _Part(f"elements {owner}", partial(_check_past_elements, kernel, sample, limits, elements, owner))


def _max_elements_per_token(sample: Sample) -> int:
    """The most elements of a token in one tensor."""
    return max(sample.inputs[n][:1].numel() for n in sample.inputs if role(sample.axes[n]) == "token")


def _parts_of_small_pack(kernel: KernelUnderTest, sample: Sample, limits: Limits) -> Iterator[_Part]:
    for name in _movable_tensors(kernel, sample) if kernel.domain.allows_strides else ():
        for placement in FAR_PLACEMENTS:
            note = f"with rows of {name.replace('cotangent:', 'the incoming gradient of ')} {placement} elements"
            yield _Part(note, partial(_check_far_rows, kernel, sample, name, placement, note))
    passed = f"{limits.sequences:,} sequences and 65,535 chunks of 256 tokens"
    yield _Part(passed, partial(_check_many_copies, kernel, sample, limits, passed))


def _check_many_copies(kernel: KernelUnderTest, sample: Sample, limits: Limits, passed: str) -> Iterator[Violation]:
    copies = max(limits.sequences // len(sample.lengths), limits.tokens // sample.offsets[-1]) + 1
    with kernel.optional(), _as_far_as_possible(kernel, f"past {passed}"):
        try:
            yield from _check_copies(kernel, sample, limits, copies, passed)
        except MachineLimit as limit:
            if not (yield from _check_values_alone(limit, kernel, sample, limits, copies, passed)):
                raise
            limit.note = f"the gradients past {passed}"
            kernel.refusals.append(limit)


@contextmanager
def _as_far_as_possible(kernel: KernelUnderTest, note: str) -> Iterator[None]:
    """A part of the property, after which it continues if the machine lacks the memory or the time for it."""
    try:
        yield
    except SlowCompilation:
        raise
    except MachineLimit as limit:
        limit.note = note
        kernel.refusals.append(limit)


def _check_past_elements(
    kernel: KernelUnderTest, sample: Sample, limits: Limits, elements_per_copy: int, owner: str
) -> Iterator[Violation]:
    """Repeat the pack until a tensor is past the largest element limit that fits the memory.

    Values need less of it than gradients: they may go past a larger limit.

    elements_per_copy: elements of this tensor in each copy.
    """
    refusals: list[MachineLimit | OutsideDomain] = []
    are_values_judged = False
    for max_elements in limits.elements:
        copies, passed = max_elements // elements_per_copy + 1, f"2^{max_elements.bit_length() - 1} elements {owner}"
        try:
            yield from _check_copies(kernel, sample, limits, copies, passed)
            break
        except (MachineLimit, OutsideDomain) as refusal:
            if not are_values_judged and isinstance(refusal, MachineLimit):
                are_values_judged = yield from _check_values_alone(refusal, kernel, sample, limits, copies, passed)
            refusal.note = f"the gradients past {passed}" if are_values_judged else f"past {passed}"
            refusals.append(refusal)
    else:
        if not are_values_judged:
            raise refusals[-1]
    kernel.refusals += refusals  # judged, but not as far


def _check_values_alone(
    limit: MachineLimit, kernel: KernelUnderTest, sample: Sample, limits: Limits, copies: int, passed: str
) -> Generator[Violation, None, bool]:
    """Run copies of the pack without a backward pass, where the machine lacks the memory for one.

    Returns whether they were judged. A kernel that is too slow is not called again.

    limit: what kept the call with a backward pass from being judged.
    """
    if not kernel.gradients or isinstance(limit, TooSlow | SlowCompilation):
        return False
    try:
        yield from _check_copies(kernel.values_only, sample, limits, copies, passed)
    except (MachineLimit, OutsideDomain):
        return False
    return True


def _check_far_rows(
    kernel: KernelUnderTest, sample: Sample, name: str, placement: Placement, note: str
) -> Iterator[Violation]:
    """Run with the rows of one tensor far apart."""
    with _as_far_as_possible(kernel, note), kernel.optional(note, words=STRIDES_REFUSED):
        actual = kernel.run(sample, placement={name: placement}, note=note)
        expected = kernel.cached_run(sample)
        for key, x in actual.items():
            yield from kernel.agree(key, x, expected[key], Origin(sample), exact=False, other="nearby", note=note)


def _check_copies(
    kernel: KernelUnderTest, sample: Sample, limits: Limits, copies: int, passed: str
) -> Iterator[Violation]:
    """Run copies of the pack. Of each tensor the last copy is compared, and the copy that differs most from it."""
    if kernel.op.reductions:
        copies = 1 << (copies - 1).bit_length()  # a power of two divides a mean exactly
    note = f"repeated {copies:,} times, past {passed}"
    pack = _with_shares(sample, copies)
    require_time(kernel, limits, copies, lambda few: kernel.run_with_result(pack, copies=few), note)
    try:
        actual, result = kernel.run_with_result(pack, copies=copies)
    except KernelFault as fault:
        yield _fault_violation(fault, note)
        return
    expected = kernel.cached_run(sample)
    for key, x in actual.items():
        if not kernel.is_shared(key, sample):
            yield from kernel.agree(key, x, expected[key], Origin(sample), other="alone", note=f"the last, {note}")
    for name, (number, x) in result.outliers.items():
        kind, _, tensor = name.partition(":")
        key = TensorKey(tensor) if kind == "output" else gradient(tensor)
        if key in expected and x.shape == expected[key].shape:
            copy_note = f"copy {number + 1:,} of the pack, {note}"
            yield from kernel.agree(key, x, expected[key], Origin(sample), other="alone", note=copy_note)


def _with_shares(sample: Sample, copies: int) -> Sample:
    """The incoming gradients of means, times the copies: each copy has its share of them, that of the pack alone."""
    means = [name for name, kind in sample.op.reductions.items() if kind in (MEAN_OVER_TOKENS, MEAN_OVER_SEQUENCES)]
    scaled = {name: sample.cotangents[name] * copies for name in means if name in sample.cotangents}
    if any(x.isinf().any() for x in scaled.values()):
        raise OutsideDomain(
            f"a gradient of a mean over {copies:,} copies is outside the range of {sample.token_dtype_name}"
        )
    return dataclasses.replace(sample, cotangents={**sample.cotangents, **scaled}) if scaled else sample


def _check_long_sequence(kernel: KernelUnderTest, sample: Sample, limits: Limits, note: str) -> Iterator[Violation]:
    """Run with zeros before the first sequence: if a few change nothing, more than 65,535 chunks must not either.

    Zeros leave the state of most ops at zero. An op whose state they change, or a kernel with `cumsum`, is not judged.
    """
    expected = kernel.cached_run(sample)

    def compare_with_plain(actual: Tensors, note: str) -> Iterator[Violation]:
        for key, x in actual.items():
            yield from kernel.agree(key, x, expected[key], Origin(sample), exact=False, other="alone", note=note)

    with kernel.optional(), _as_far_as_possible(kernel, note):
        short_run = kernel.run(sample, history=SHORT_HISTORY)
        if next(compare_with_plain(short_run, ""), None) is not None:
            return
        require_time(kernel, limits, limits.history, lambda tokens: kernel.run(sample, history=tokens), note)
        try:
            actual = kernel.run(sample, history=limits.history)
        except KernelFault as fault:
            yield _fault_violation(fault, note)
            return
        yield from compare_with_plain(actual, note)


def _fault_violation(fault: KernelFault, note: str) -> Violation:
    """The fault as a violation. Raises TooSlow for a call that hung."""
    if fault.kind == "hung":
        raise TooSlow(f"too slow to be judged {note}: {fault}") from fault
    return Violation(text=str(fault), note=note, fault=fault.kind)


def _movable_tensors(kernel: KernelUnderTest, sample: Sample) -> list[str]:
    """The tensors along tokens or sequences with at least three rows, by their names in a call."""
    names = {
        **{n: n for n in sample.passed_inputs},
        **{f"cotangent:{n}": n for n in sample.cotangents if kernel.gradients},
    }
    packed_names = {n: name for n, name in names.items() if role(sample.axes[name]) != "shared"}
    return [n for n, name in packed_names.items() if sample.shape(name)[0] > 2 and all(sample.shape(name)[1:])]


def _whole_chunk_cases(space: Space, _drawn_cases: Collection[Case]) -> list[Case]:
    """Packs of whole chunks, so that each copy lies on the same grid.

    A small one with all inputs and options of the kernel; a wide one of a model's size without states; a wide one with
    states, of sequences of one token. The first two have five sequences, and all a multiple of three tokens: an index
    that wraps at a power of two then meets another place of a copy.
    """
    space_without_slack = (
        dataclasses.replace(space, domain=space.domain & Domain.of("slack == 0")) if space.domain else space
    )
    if space.op.pool:
        return []
    three_chunks = 3 * space.chunk
    small_lengths = (
        -(-600 // three_chunks) * three_chunks - 3,
        1,
        0,
        1,
        1,
    )  # both limits are passed at about as many copies
    wide_lengths, single_tokens = (1, 0, 2, max(three_chunks - 4, 1), 1), (1,) * three_chunks
    small_sizes, wide_sizes = space.plain_sizes[:1], space.model_sizes[:1]
    unfitted_cases = [golden_case(space, 0, small_lengths, size, rich=True) for size in small_sizes]
    unfitted_cases += [golden_case(space, 0, wide_lengths, size, rich=False) for size in wide_sizes]
    if space.op.carry and space.op.carry[0] in space.optional_inputs:
        unfitted_cases += [golden_case(space, 0, single_tokens, size, rich=True) for size in wide_sizes]
    return [c for c in map(space_without_slack.fit, unfitted_cases) if c]


def _size_skip_reason(space: Space) -> str:
    if space.op.pool:
        return "the copies of a pack would share the slots of its pool"
    if MAXIMUM in space.op.reductions.values():
        return "the copies of a pack would all have its maximum"
    return needs_gpu("only the memory and the grids of a GPU are that large")(space)


_PACK = "aaa bbbbb cc"


def size_property(limits: Limits) -> Property:
    """The property with these limits."""
    return Property(
        "size",
        LAWS["size"],
        partial(_size, limits=limits),
        cases=_whole_chunk_cases,
        fills_memory=True,
        skip_reason=_size_skip_reason,
        decides_mutants=False,
        shares="runs",  # after them in their process: the time of slow calls follows from theirs
        illustration=Illustration(
            "f(S)[j] does not change past 2³² elements, 131,071 sequences or 65,535 chunks of 256 tokens",
            ("the pack", _PACK),
            ("far away", f"?..? {_PACK}"),
            "machines without the memory, where it reports so",
        ),
    )


SIZE = size_property(Limits())
