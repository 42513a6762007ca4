"""The steady property: a new layout of a known shape compiles, tunes and reads nothing, and keeps no more memory."""

from collections.abc import Collection, Iterator, Mapping

from packproof.base.law_names import LAWS
from packproof.base.provenance.host_work import HostWork, work_text
from packproof.base.wording import plural
from packproof.properties.calling.call import Result
from packproof.properties.cases.case import Case, shorten
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.space import Space, golden_case
from packproof.properties.judgement.comparison import Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.torch_integration import fp32_skip_reason
from packproof.properties.laws.violation import Violation
from packproof.properties.steadiness.layouts import Layouts

_MOST_LINES = 4
_LEAST_LAYOUTS = 3  # in which memory has to grow each time: else a table may be full later


def _steady(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Call it with layouts of one shape, and count the work of the host and the memory kept in each call.

    Only a promise counts: the other kernels are asked (`declarations.questions`).
    """
    if not kernel.promises.steady:
        return
    layouts = Layouts.of_one_shape(case, lambda layout: _is_of_same_shape(kernel, layout, case))
    earlier: dict[HostWork, None] = {}
    for layout in layouts.warm_up if layouts.new else []:
        tensors, result = _count(kernel, layout)
        earlier.update(dict.fromkeys(result.host_work))
        if layout is layouts.warm_up[0]:
            yield from _differences(kernel, layout, tensors)
    live_bytes: list[int] = []
    for layout in layouts.new:
        result = _count(kernel, layout)[1]
        live_bytes = [result.live_bytes]
        if new := [work for work in result.host_work if work.kind == "reads" or work not in earlier]:
            yield Violation(text=_work_text(new, list(earlier)), note=_note(layout))
        earlier.update(dict.fromkeys(result.host_work))
    for layout in layouts.spare if layouts.new else []:  # until memory grows no more: at once, as a rule
        live_bytes.append(_count(kernel, layout)[1].live_bytes)
        if live_bytes[-1] <= live_bytes[-2]:
            return
    if len(live_bytes) > _LEAST_LAYOUTS:
        yield Violation(text=_memory_text(live_bytes), note=_note(layouts.spare[-1]))


def _count(kernel: KernelUnderTest, layout: Case) -> tuple[Tensors, Result]:
    return kernel.run_with_result(kernel.sample(layout), mode="counted", note=_note(layout))


def _differences(kernel: KernelUnderTest, case: Case, tensors: Tensors) -> Iterator[Violation]:
    """A kernel may not compute something else while its work is counted."""
    sample, note = kernel.sample(case), "while the work of the host was counted"
    expected = kernel.cached_run(sample)
    for key, x in tensors.items():
        yield from kernel.agree(key, x, expected[key], Origin(sample), exact=False, other="before", note=note)


def _is_of_same_shape(kernel: KernelUnderTest, layout: Case, case: Case) -> bool:
    layout_shapes, case_shapes = ({n: x.shape for n, x in kernel.sample(c).inputs.items()} for c in (layout, case))
    return layout_shapes == case_shapes and kernel.domain.allows(kernel.op, layout)


def _note(layout: Case) -> str:
    keys = "" if layout.key_lengths is None else f", keys {shorten(layout.key_lengths)}"
    return f"in a new layout of a known shape, lengths {shorten(layout.lengths)}{keys}"


def _work_text(new: list[HostWork], earlier: list[HostWork]) -> str:
    lines = list(dict.fromkeys(work_text(work, earlier) for work in new))
    more = len(lines) - _MOST_LINES
    return "\n".join([*lines[:_MOST_LINES], *([f"and {plural(more, 'more')}"] if more > 0 else [])])


def _memory_text(live_bytes: list[int]) -> str:
    layouts = len(live_bytes) - 1
    return f"keeps more memory with each of {layouts} layouts: {live_bytes[-1] - live_bytes[0]:,} bytes in all"


def _steady_cases(space: Space, _: Collection[Case]) -> list[Case]:
    """A pack with a longest sequence of one chunk or several, with all optional inputs; on a GPU also with none.

    Tables by position have a row for each row of the pack: their shape does not follow the lengths.
    """
    c = space.chunk
    lengths = (c + 2, c + 1, c + 1, c + 1)
    sizes = [_with_table_of_rows(sizes[0]) for sizes in (space.plain_sizes, space.model_sizes) if sizes]
    forms = (True, False) if space.on_gpu else (True,)
    cases = [golden_case(space, 0, lengths, size, rich=rich) for size in sizes for rich in forms]
    return list(dict.fromkeys(case.replace(regime="normal") for case in cases))


def _with_table_of_rows(sizes: Mapping[str, int | str]) -> dict[str, int | str]:
    return {name: "rows" if size == "longest" else size for name, size in sizes.items()}


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
        "`torch.tensor` makes of numbers is free to read. Memory that grows with each of a dozen "
        "layouts counts as growing without bounds. In the interpreter the key of a compilation is worked out from the "
        "arguments of a launch. Waits of a compiled extension are seen on a GPU alone, and only of a call in which "
        "neither the kernel nor its adapter reads a tensor otherwise.",
    ),
)
