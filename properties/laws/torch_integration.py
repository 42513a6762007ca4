"""What torch needs of an op: compiled, captured, on another stream, checked as an operator, it is the same function."""

from collections.abc import Collection, Iterator

from packproof.properties.call import KernelFault, Mode, NotCompiled
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.kernel_under_test import KernelUnderTest, Origin, Tensors
from packproof.properties.laws.names import LAWS
from packproof.properties.laws.property import Illustration, Property, needs_gpu
from packproof.properties.violation import Violation

SMALL = 12  # tokens: torch.compile unrolls what loops over them, and over sequences
_PACK = "aaa bbbbb cc"


def few(space: Space, drawn: Collection[Case]) -> list[Case]:
    """The smallest packs with a boundary: with something optional and with nothing, and in the sizes of a model.

    Reversing the order of their lengths changes them. Where no such pack is drawn, the smallest without a boundary
    stands in. What torch makes of a kernel takes long, and does not depend on the layout.
    """
    asymmetric = [c.replace(regime="normal") for c in drawn if c.n_tokens and c.lengths != c.lengths[::-1]]
    asymmetric.sort(key=lambda c: (c.has_boundary, -c.n_tokens))  # of each kind the last one stays
    return list({(dict(c.sizes) in space.model_sizes, _is_rich(space, c)): c for c in asymmetric}.values())


def _few_and_tiny(space: Space, drawn: Collection[Case]) -> list[Case]:
    """On a CPU, where torch's own checks take seconds, a few tokens in fp32 with nothing optional, and no second empty
    sequence."""
    if space.on_gpu:
        return few(space, drawn)
    tiny = [c for c in drawn if c.n_tokens <= SMALL and not _is_rich(space, c)]
    return [_with_one_empty(c) for c in few(space, tiny)]


def _with_one_empty(case: Case) -> Case:
    """The same case without the other empty sequences; the one that stays follows the first sequence that is not."""
    first, *others = (n for n in case.lengths if n)
    return case.with_lengths((first, *(0,) * (0 in case.lengths), *others)) if case.key_lengths is None else case


def _is_rich(space: Space, case: Case) -> bool:
    """Whether it has an optional input, or an option that is not the plainest."""
    return bool(case.present) or any(value != space.op.options[name][0] for name, value in case.options)


def _fp32_on_cpu(space: Space) -> str:
    return "" if space.on_gpu or space.dtype == "float32" else "on a CPU it is judged in fp32 alone"


def _same_in(kernel: KernelUnderTest, case: Case, mode: Mode, note: str, *, exact: bool) -> Iterator[Violation]:
    """Called in that mode it computes what it computes when it is called plainly."""
    sample = kernel.sample(case)
    plain = kernel.remembered(sample)
    with kernel.optional(note):
        got = kernel.run(sample, mode=mode, note=note)
        yield from _agree(kernel, sample, got, plain, note, exact=exact)


def _agree(
    kernel: KernelUnderTest, sample: Sample, got: Tensors, plain: Tensors, note: str, *, exact: bool
) -> Iterator[Violation]:
    for key, x in got.items():
        yield from kernel.agree(key, x, plain[key], Origin(sample), exact=exact, other="before", note=note)


def _torch_compile(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """What torch itself cannot compile is a failure of kernels alone that promise to be compiled."""
    kernel.remembered(kernel.sample(case))
    if kernel.interpreted:
        return
    try:
        yield from _same_in(kernel, case, "compiled", "through torch.compile", exact=False)
    except NotCompiled as error:
        if kernel.promises.compilable:
            raise KernelFault("raised", str(error)) from error
        raise


TORCH_COMPILE = Property(
    "torch_compile",
    LAWS["torch_compile"],
    _torch_compile,
    cases=_few_and_tiny,
    skip_reason=_fp32_on_cpu,
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
    yield from _same_in(kernel, case, "graph", note, exact=kernel.promises.deterministic)


def _not_capturable(space: Space) -> str:
    if not space.on_gpu:
        return "only a GPU captures graphs"
    return "" if space.promises.capturable else "the kernel does not promise that it can be captured"


CUDA_GRAPH = Property(
    "cuda_graph",
    LAWS["cuda_graph"],
    _cuda_graph,
    cases=few,
    skip_reason=_not_capturable,
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
    yield from _same_in(kernel, case, "side stream", note, exact=kernel.promises.deterministic)


SIDE_STREAM = Property(
    "side_stream",
    LAWS["side_stream"],
    _side_stream,
    cases=few,
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
    """Of the operators that the kernel calls, with the arguments that it gives them."""
    sample, note = kernel.sample(case), "under torch.library.opcheck"
    plain = kernel.remembered(sample)
    with kernel.optional(note):
        got, result = kernel.results(sample, mode="opcheck")
        if result.operators:
            yield from _agree(kernel, sample, got, plain, note, exact=False)


OPCHECK = Property(
    "opcheck",
    LAWS["opcheck"],
    _opcheck,
    cases=_few_and_tiny,
    skip_reason=_fp32_on_cpu,
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
