"""Properties of an op in torch: the same function when compiled, captured, on another stream or opchecked."""

from collections.abc import Collection, Iterator

from packproof.base.errors import KernelFault
from packproof.base.law_names import LAWS
from packproof.properties.calling.call import FailedCompilation, Mode
from packproof.properties.cases.case import Case
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.judgement.comparison import Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Illustration, Property, needs_gpu
from packproof.properties.laws.violation import Violation

MAX_SMALL_TOKENS = 12  # tokens: torch.compile unrolls loops over tokens and sequences
_PACK = "aaa bbbbb cc"


def smallest_cases(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The smallest drawn packs with a boundary: rich and plain, at small sizes and at those of a model.

    Few, since compiling or capturing is slow and does not depend on the layout. Reversing the order of their lengths
    changes them where any drawn pack has such lengths: the captured call has them reversed. In the packs of a decode
    kernel all lengths are 1, and those of the keys differ. Without a boundary in any drawn pack, the smallest one
    stands in.
    """

    def rank(case: Case) -> tuple[bool, bool, bool, int]:
        has_free_keys = space.frees_keys and case.key_lengths not in (None, case.lengths)
        return case.lengths != case.lengths[::-1], case.has_boundary, has_free_keys, -case.n_tokens

    packs = sorted((c.replace(regime="normal") for c in drawn_cases if c.n_tokens), key=rank)
    # the dict below keeps the last case of each kind
    return list({(dict(c.sizes) in space.model_sizes, is_rich(space, c)): c for c in packs}.values())


def _smallest_cases_for_device(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """`smallest_cases`; on a CPU only plain ones of a few tokens with at most one empty sequence.

    Torch's own checks take seconds there.
    """
    if space.on_gpu:
        return smallest_cases(space, drawn_cases)
    tiny_cases = [c for c in drawn_cases if c.n_tokens <= MAX_SMALL_TOKENS and not is_rich(space, c)]
    return [_with_one_empty_sequence(c) for c in smallest_cases(space, tiny_cases)]


def _with_one_empty_sequence(case: Case) -> Case:
    """The case with at most one empty sequence, placed after the first non-empty one."""
    first_length, *further_lengths = (n for n in case.lengths if n)
    return (
        case.with_lengths((first_length, *(0,) * (0 in case.lengths), *further_lengths))
        if case.key_lengths is None
        else case
    )


def is_rich(space: Space, case: Case) -> bool:
    """Whether the case has an optional input or a non-default option."""
    return bool(case.present) or any(value != space.op.options[name][0] for name, value in case.options)


def fp32_skip_reason(space: Space) -> str:
    return "" if space.on_gpu or space.dtype == "float32" else "on a CPU it is judged in fp32 alone"


def _compare_mode(kernel: KernelUnderTest, case: Case, mode: Mode, note: str, *, exact: bool) -> Iterator[Violation]:
    """Compare a call in this mode with a plain call."""
    sample = kernel.sample(case)
    expected = kernel.cached_run(sample)
    with kernel.optional(note):
        actual = kernel.run(sample, mode=mode, note=note)
        yield from _compare_results(kernel, sample, actual, expected, note, exact=exact)


def _compare_results(
    kernel: KernelUnderTest, sample: Sample, actual: Tensors, expected: Tensors, note: str, *, exact: bool
) -> Iterator[Violation]:
    for key, x in actual.items():
        yield from kernel.agree(key, x, expected[key], Origin(sample), exact=exact, other="before", note=note)


def _torch_compile(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """An error of torch's compiler fails only a kernel that promises `compilable`."""
    kernel.cached_run(kernel.sample(case))
    if kernel.interpreted:
        return
    try:
        yield from _compare_mode(kernel, case, "compiled", "through torch.compile", exact=False)
    except FailedCompilation as error:
        if kernel.promises.compilable:
            raise KernelFault("raised", str(error)) from error
        raise


TORCH_COMPILE = Property(
    "torch_compile",
    LAWS["torch_compile"],
    _torch_compile,
    cases=_smallest_cases_for_device,
    skip_reason=fp32_skip_reason,
    nothing_to_compare="torch.compile does not see what Triton's interpreter runs",
    decides_mutants=False,
    quick=True,
    shares="nothing",
    illustration=Illustration(
        "compiled f(S) = f(S)",
        ("called", _PACK),
        ("compiled", _PACK),
        "bugs that also occur in eager mode, and calls that torch itself cannot compile, where that is not promised",
    ),
)


def _cuda_graph(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    note = "replayed from a CUDA graph that was captured with the lengths in opposite order"
    yield from _compare_mode(kernel, case, "graph", note, exact=kernel.promises.deterministic)


def _cuda_graph_skip_reason(space: Space) -> str:
    if not space.on_gpu:
        return "only a GPU captures graphs"
    return "" if space.promises.capturable else "the kernel does not promise that it can be captured"


CUDA_GRAPH = Property(
    "cuda_graph",
    LAWS["cuda_graph"],
    _cuda_graph,
    cases=smallest_cases,
    skip_reason=_cuda_graph_skip_reason,
    decides_mutants=False,
    quick=True,
    shares="nothing",
    illustration=Illustration(
        "f(S) replayed from a graph that captured f(S′) = f(S)   for S′ of as many sequences and tokens",
        ("called", _PACK),
        ("replayed", _PACK),
        "kernels that do not promise to be capturable",
    ),
)


def _side_stream(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    note = "on a side stream, where its inputs come late"
    yield from _compare_mode(kernel, case, "side stream", note, exact=kernel.promises.deterministic)


SIDE_STREAM = Property(
    "side_stream",
    LAWS["side_stream"],
    _side_stream,
    cases=smallest_cases,
    skip_reason=needs_gpu("only a GPU has streams"),
    decides_mutants=False,
    quick=True,
    shares="nothing",
    illustration=Illustration(
        "f(S) on a side stream, where S comes late = f(S)",
        ("called", _PACK),
        ("on a stream", _PACK),
        "races that the delay of 50 ms does not show",
    ),
)


def _opcheck(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """For the operators called by the kernel, with its own arguments."""
    sample, note = kernel.sample(case), "under torch.library.opcheck"
    expected = kernel.cached_run(sample)
    with kernel.optional(note):
        actual, result = kernel.run_with_result(sample, mode="opcheck")
        if result.operators:
            yield from _compare_results(kernel, sample, actual, expected, note, exact=False)


OPCHECK = Property(
    "opcheck",
    LAWS["opcheck"],
    _opcheck,
    cases=_smallest_cases_for_device,
    skip_reason=fp32_skip_reason,
    nothing_to_compare="the kernel calls no operator that is registered with torch",
    decides_mutants=False,
    quick=True,
    shares="nothing",
    illustration=Illustration(
        "schema, autograd and fake tensors of f's operators are what torch.library.opcheck expects",
        ("called", _PACK),
        ("checked", _PACK),
        "kernels that register no operator",
    ),
)
