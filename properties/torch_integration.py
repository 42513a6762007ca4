"""What torch asks of an op: compiled, captured, on another stream, differentiated twice, it is the same function."""

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, autograd, full_like, zeros_like

from packproof.properties.budget import UNIT_ROUNDOFF, Budget, accumulations, accumulator
from packproof.properties.call import KernelFault, MachineLimit, Mode, Refused
from packproof.properties.case import Case
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.oracle import gradient, is_derived, twin
from packproof.properties.running_error import bounded
from packproof.properties.sample import Sample
from packproof.properties.violation import RowMap, Violation, within

SMALL = 12  # tokens: torch.compile unrolls what loops over them


def torch(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Compiled, captured or on a side stream it computes the same; differentiated twice, the right thing or an error.

    Operators registered with torch pass torch.library.opcheck. On a GPU: through torch.compile, on a stream whose work
    has yet to produce the inputs, and, where the kernel promises to be capturable, replayed from a CUDA graph with
    other boundaries. On a CPU a few tokens in fp32 see opcheck and, where no kernel is interpreted, torch.compile.
    """
    sample = subject.sample(case)
    plain = subject.remembered(sample)
    if not sum(case.lengths):
        return
    on_gpu = subject.runner.device != "cpu"
    if on_gpu or _plain(case):
        yield from _registered(subject, sample)
    for mode, note in _modes(subject, case):
        with subject.optional(note):
            got = subject.run(sample, mode=mode, note=note)
            for name, x in got.items():
                exact = subject.promises.deterministic and mode != "compiled"
                yield from subject.agree(name, x, plain[name], sample, exact=exact, other="before", note=note)
    if subject.gradients and sample.wrt:
        yield from _twice(subject, sample)


def _modes(subject: KernelUnderTest, case: Case) -> Iterator[tuple[Mode, str]]:
    """The ways to call it that its device has, and how to put them."""
    on_gpu = subject.runner.device != "cpu"
    if on_gpu:
        yield "side stream", "on a side stream, where its inputs come late"
    if on_gpu and subject.promises.capturable:
        yield "graph", "replayed from a CUDA graph that was captured with the lengths in opposite order"
    if on_gpu or (_plain(case) and not subject.interpreted):
        yield "compiled", "through torch.compile"


def _plain(case: Case) -> bool:
    """Whether it is one of the few that torch's own checks see on a CPU, where they take seconds."""
    given = case.present or any(value for _, value in case.options)
    return case.n_tokens <= SMALL and case.dtype == "float32" and not given


def _registered(subject: KernelUnderTest, sample: Sample) -> Iterator[Violation]:
    """torch.library.opcheck of the operators that the kernel calls."""
    with subject.optional("under torch.library.opcheck"):
        try:
            subject.call(sample, gradients=subject.gradients, mode="opcheck")
        except KernelFault as fault:
            yield Violation(text=str(fault), fault=fault.kind)


def _twice(subject: KernelUnderTest, sample: Sample) -> Iterator[Violation]:
    """A second derivative is the reference's, or there is an error: never another value.

    What is wrong there lacks whole terms, so half of the digits are compared, of the largest element of each tensor.
    Where large terms cancel, accumulation leaves K_acc u_acc B, of the terms that the absolute twin has: some of those
    there are.
    """
    try:
        result = subject.call(sample, mode="double backward")
    except KernelFault as fault:
        if fault.kind != "raised":
            yield Violation(text=str(fault), note="differentiated twice", fault=fault.kind)
        return
    except MachineLimit:
        raise
    except Refused:
        return
    derived = is_derived(sample.op, subject.promises)
    if derived:
        want, terms = bounded(lambda: second(sample.op.reference, sample))
    else:
        want = second(sample.op.reference, sample)
        terms = dict(second(twin(sample.op, subject.promises), sample, absolute=True))
    u_acc = accumulator(sample.inputs[next(iter(sample.op.inputs))].dtype)
    k_acc = accumulations(subject.promises, derived=derived)
    largest = max((float(x.abs().max()) for x in want.values() if x.numel()), default=0.0)
    for name, x in want.items():
        given = sample.cotangents[name.removeprefix(_COTANGENT)] if name.startswith(_COTANGENT) else sample.inputs[name]
        got = result.gradients.get(name, zeros_like(given))
        unit = UNIT_ROUNDOFF[given.dtype]
        error = unit**0.5 * float(x.abs().max() if x.numel() else 0) + unit * largest
        allowed = Budget(full_like(x, error), zeros_like(x), k_acc * u_acc * terms[name].abs())
        frame = RowMap(sample.axes[name.removeprefix(_COTANGENT)], sample.offsets)
        yield from within(_second(name), got, x, allowed, frame, note="differentiated twice")


_COTANGENT = "cotangent:"


def _second(name: str) -> str:
    incoming = name.startswith(_COTANGENT)
    of = f"the incoming gradient of {name.removeprefix(_COTANGENT)}" if incoming else name
    return f"second {gradient(of)}"


def second(f: Callable[..., object], sample: Sample, *, absolute: bool = False) -> Mapping[str, Tensor]:
    """In float64, the gradients of the sum of all products of a first gradient of `f` with its input, as runners do.

    absolute: `f` is a twin, whose incoming gradients and factors are absolute.
    """
    inputs = {n: x.double().requires_grad_(n in sample.wrt) for n, x in sample.inputs.items()}
    given = {n: c.double().abs() if absolute else c.double() for n, c in sample.cotangents.items()}
    cotangents = {n: c.requires_grad_() for n, c in given.items()}
    results = f(**inputs, cu_seqlens=sample.cu_seqlens, **sample.options)
    named = dict(zip(sample.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    reached = [n for n, y in named.items() if y.requires_grad]
    first = autograd.grad(
        [named[n] for n in reached],
        [inputs[n] for n in sample.wrt],
        [cotangents[n] for n in reached],
        create_graph=True,
        allow_unused=True,
    )
    factors = {n: inputs[n].detach().abs() if absolute else inputs[n].detach() for n in sample.wrt}
    products = [(g * factors[n]).sum() for n, g in zip(sample.wrt, first, strict=True) if g is not None]
    leaves = {**{n: inputs[n] for n in sample.wrt}, **{f"{_COTANGENT}{n}": c for n, c in cotangents.items()}}
    found = autograd.grad(sum(products), list(leaves.values()), allow_unused=True)  # type: ignore[arg-type]
    return {n: zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), found, strict=True)}
