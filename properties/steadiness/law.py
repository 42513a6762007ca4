"""The steady property: a new layout of a known shape compiles, tunes and reads nothing, and keeps no more memory."""

from collections.abc import Collection, Iterator

from packproof.base.host_work import HostWork, work_text
from packproof.base.law_names import LAWS
from packproof.base.wording import plural
from packproof.properties.cases.case import Case, shorten
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, golden_case
from packproof.properties.judgement.comparison import Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.torch_integration import fp32_skip_reason
from packproof.properties.laws.violation import Violation
from packproof.properties.steadiness.layouts import layouts_of_one_shape

_MOST_LINES = 4
_LEAST_LAYOUTS = 3  # in which memory has to grow each time: a table may be full later


def _steady(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Call it with layouts of one shape, and count what the host does and what memory is kept in each call.

    Only what it promises is counted: the other kernels are asked (`declarations.questions`).
    """
    first, further = layouts_of_one_shape(case, lambda layout: kernel.domain.allows(kernel.op, layout))
    if not (kernel.promises.steady and further):
        return
    yield from _differences(kernel, kernel.sample(first[0]))
    shapes, earlier, kept = _shapes(kernel.sample(first[0])), dict[HostWork, None](), list[int]()
    layouts = [layout for layout in (*first, *further, first[0]) if _shapes(kernel.sample(layout)) == shapes]
    for layout in layouts:
        _, result = kernel.run_with_result(kernel.sample(layout), mode="counted", note=_note(layout))
        if layout in further:
            kept.append(result.live_bytes)
            if new := [work for work in result.host_work if work.kind == "reads" or work not in earlier]:
                yield Violation(text=_work_text(new, list(earlier)), note=_note(layout))
        earlier.update(dict.fromkeys(result.host_work))
    kept.append(result.live_bytes)
    if len(kept) > _LEAST_LAYOUTS and all(after > before for before, after in zip(kept, kept[1:], strict=False)):
        yield Violation(text=_memory_text(kept), note=_note(layouts[-2]))


def _differences(kernel: KernelUnderTest, sample: Sample) -> Iterator[Violation]:
    """A kernel that computes something else while it is counted was counted in vain."""
    expected, note = kernel.cached_run(sample), "while the work of the host was counted"
    for key, x in kernel.run(sample, mode="counted", note=note).items():
        yield from kernel.agree(key, x, expected[key], Origin(sample), exact=False, other="before", note=note)


def _shapes(sample: Sample) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in sample.inputs.items()}


def _note(layout: Case) -> str:
    keys = "" if layout.key_lengths is None else f", keys {shorten(layout.key_lengths)}"
    return f"in a new layout of a known shape, lengths {shorten(layout.lengths)}{keys}"


def _work_text(new: list[HostWork], earlier: list[HostWork]) -> str:
    lines = list(dict.fromkeys(work_text(work, earlier) for work in new))
    more = len(lines) - _MOST_LINES
    return "\n".join([*lines[:_MOST_LINES], *([f"and {plural(more, 'more')}"] if more > 0 else [])])


def _memory_text(kept: list[int]) -> str:
    layouts = len(kept) - 1
    return f"keeps more memory with each of {layouts} layouts: {kept[-1] - kept[0]:,} bytes in all"


def _steady_cases(space: Space, _: Collection[Case]) -> list[Case]:
    """A pack whose longest sequence can have one chunk or several: with all optional inputs, and with none."""
    c = space.chunk
    lengths = (c + 2, c + 1, c + 1, c + 1)
    sizes = [dict(sizes[0]) for sizes in (space.plain_sizes, space.model_sizes) if sizes]
    cases = [golden_case(space, 0, lengths, size, rich=rich) for size in sizes for rich in (True, False)]
    return list(dict.fromkeys(case.replace(regime="normal") for case in cases))


STEADY = Property(
    "steady",
    LAWS["steady"],
    _steady,
    cases=_steady_cases,
    skip_reason=fp32_skip_reason,
    nothing_to_compare="the kernel does not promise to be steady, or has no two layouts of one shape",
    decides_mutants=False,
    quick=True,
    shares="nothing",
    illustration=Illustration(
        "work of the host for f(S′) ⊆ work for f(S)   for S′ of as many sequences and tokens",
        ("known", "aaa bbbbb cc"),
        ("new", "aaaaa bb ccc"),
        "numbers and lists of Python that it keeps, threads of its own, memory that grows more slowly than by layout, "
        "and on a CPU whatever a compiled extension does",
        "Counted, not timed: compilations by Triton (constants, dtypes, numbers that are 1 or divisible by 16, aligned "
        "addresses) and by torch.compile, keys of autotuners, reads of tensors by the host such as `item`, `tolist` "
        "and boolean indexing, and storages that stay allocated. Of these only what none of the first layouts needed "
        "counts, but any read. What an adapter makes of the offsets is its caller's, such as the longest length; what "
        "a kernel makes on the host of numbers is free to read. A cache of more entries than layouts are tried counts "
        "as one without bounds. In the interpreter the key of a compilation is worked out from the arguments.",
    ),
)
