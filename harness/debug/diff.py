"""Where a kernel first diverges from its reference: token, sequence, chunk and channel, and the state there."""

import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.harness.debug.local import Local
from packproof.harness.engine.replay import check_fits
from packproof.harness.engine.target import resolve_op
from packproof.harness.results.maps import Layout, compact
from packproof.harness.results.replay_file import read_replay
from packproof.harness.targets.location import Location
from packproof.properties.bounds.budget import score
from packproof.properties.bounds.oracle import vjp
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.declaration import Declaration, brought_op, check_signature, declaration, describe
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.op import Op
from packproof.properties.tensor_key import TensorKey
from packproof.refs.axes import role
from packproof.refs.errors import UsageError
from packproof.refs.wording import counted

_MOST_NUMBERS = 64


@dataclass(frozen=True)
class Divergence:
    """The first wrong row of one tensor, and its worst channel.

    sequence, token: -1 if not applicable; a row of slack has sequence -1. chunk: in the kernel's promised grid, counted
    from the start of the grid, or None. channel: the index after the row; the whole index for a shared tensor. rows,
    of: how many rows are wrong. state: the reference's state of the sequence after that token, for ops with a state.
    """

    tensor: str
    sequence: int
    token: int
    chunk: int | None
    channel: tuple[int, ...]
    got: float
    expected: float
    budget: float
    rows: int
    of: int
    state: Tensor | None = field(default=None, compare=False)

    def __str__(self) -> str:
        place = [f"sequence {self.sequence}"] if self.sequence >= 0 else ["slack"] if self.token >= 0 else ["shared"]
        place += [f"token {self.token}"] if self.token >= 0 else []
        place += [f"chunk {self.chunk}"] if self.chunk is not None else []
        place += [f"channel {list(self.channel)}"] if self.channel else []
        error = abs(self.got - self.expected) / self.budget if self.budget else float("inf")
        values = f"got {self.got:.6g}, expected {self.expected:.6g}, {compact(error)} x the budget {self.budget:.2g}"
        are = "is" if self.rows == 1 else "are"
        lines = [f"{self.tensor}: {', '.join(place)}: {values}; {self.rows} of {counted(self.of, 'row')} {are} wrong"]
        if self.state is not None and self.state.numel() <= _MOST_NUMBERS:
            numbers = str(self.state.numpy().round(4)).splitlines()
            lines += ["  the state after it:", *(f"    {line}" for line in numbers)]
        elif self.state is not None:
            lines.append(f"  the state after it is in .state, {tuple(self.state.shape)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Diff:
    """Every output and gradient that diverges from its reference, in the order of the op; false if none does."""

    case: Case
    divergences: tuple[Divergence, ...]

    def __bool__(self) -> bool:
        return bool(self.divergences)

    def __str__(self) -> str:
        found = [str(divergence) for divergence in self.divergences]
        return "\n".join([str(self.case), *(found or ["every output and gradient lies within its budget"])])


def diff(
    kernel: str | Callable[..., Any],
    reference: Callable[..., Any] | None = None,
    case: str | Path | Case | Sequence[int] | None = None,
    *,
    op: str | Op | None = None,
    device: str = "cpu",
) -> Diff:
    """Find where a kernel first diverges from its reference, in each output and gradient. Runs in this process.

    A Triton kernel on the CPU runs in a process that interprets it, unless this one was started with
    TRITON_INTERPRET=1; a closure needs this, because no other process can import it.

    kernel: a function, or its name as `packproof check` takes it. reference: another function with the op's arguments,
    such as the kernel before an edit; default: the op's own, in float64. case: a replay file, a Case, or the lengths of
    sequences, which are filled with normal data. op: needed if neither the kernel nor the replay file names one.

    Raises UsageError for a replay file that cannot be read or does not fit the op, and for a Triton kernel that no
    other process can import to interpret it.
    """
    function = Location.parse(kernel).load() if isinstance(kernel, str) else kernel
    name = kernel if isinstance(kernel, str) else getattr(kernel, "__qualname__", repr(kernel))
    declared = declaration(describe(function), name)
    if case is None:
        raise UsageError("diff: case is missing; expected a replay file, a Case or the lengths of sequences")
    file = Path(case) if isinstance(case, str | Path) else None
    if file is not None:
        data = read_replay(file)
        op, case = op or _op_of(data["op"], function, file), data["case"]
        declared = dataclasses.replace(declared, gradients=data["gradients"], promises=data["promises"])
    known = resolve_op(op or brought_op(function), declared, name)
    check_signature(known, declared, name)
    if not isinstance(case, Case):
        case = _plain(known, declared, _lengths(case))
    if file is not None:
        check_fits(case, known, file)
    with ExitStack() as stack:
        runner = stack.enter_context(closing(Local(function, device, name=kernel if isinstance(kernel, str) else "")))
        subject = KernelUnderTest(
            known, runner, declared.promises, gradients=declared.gradients, domain=declared.domain
        )
        other = None
        if reference is not None:
            other = KernelUnderTest(known, stack.enter_context(closing(Local(reference, device))), declared.promises)
        return Diff(case, tuple(_divergences(subject, other, case)))


def _op_of(named: str, function: Callable[..., Any], file: Path) -> str | Op:
    """The op that a replay file names. A path in the file is not imported: the user has to name it."""
    if ":" not in named:
        return named
    op = brought_op(function)
    if op is None:
        raise UsageError(f"diff: {file} names the op {named!r}, which is imported only if you name it: op={named!r}")
    return op


def _lengths(case: Any) -> tuple[int, ...]:
    try:
        lengths = tuple(map(operator.index, case))
    except TypeError:
        lengths = (-1,)
    if any(n < 0 for n in lengths):
        raise UsageError(
            f"diff: case is {case!r}; expected a replay file, a Case or the lengths of sequences, such as [3, 0, 5]"
        )
    return lengths


def _plain(op: Op, declared: Declaration, lengths: tuple[int, ...]) -> Case:
    """The case of these lengths, with defaults for everything else."""
    space = Space(op, declared.dtypes[0], declared.promises, declared.parameters)
    options = space.known_options({name: values[0] for name, values in space.options.items()})
    return Case(lengths, declared.dtypes[0], tuple(op.sizes[0].items()), options=options)


def _divergences(subject: KernelUnderTest, other: KernelUnderTest | None, case: Case) -> Iterator[Divergence]:
    sample = subject.sample(case)
    got, answer = subject.run(sample), subject.expect(sample)
    wanted = answer.values if other is None else other.run(sample, gradients=subject.gradients)
    layout = Layout.of(case.lengths, case.slack, subject.promises)
    for key, x in got.items():
        # two kernels may err in opposite directions
        allowed = answer.budgets[key].total * (1 if other is None else 2)
        ratio = score(x, wanted[key].double(), allowed)
        rows = ratio.reshape(len(ratio), -1).amax(1) if ratio.numel() else ratio.new_zeros(0)
        wrong = (rows > 1).nonzero().flatten().tolist()
        if wrong:
            yield _divergence(subject, sample, layout, key, (x, wanted[key], allowed, ratio), wrong)


def _divergence(
    subject: KernelUnderTest,
    sample: Sample,
    layout: Layout,
    key: TensorKey,
    values: tuple[Tensor, Tensor, Tensor, Tensor],
    wrong: Sequence[int],
) -> Divergence:
    got, wanted, allowed, ratio = values
    row, rows = wrong[0], subject.row_map(key, sample)
    channel = tuple(int(i) for i in torch.unravel_index(ratio[row].argmax(), ratio[row].shape))
    sequence, token = rows.locate(row)
    index = (row, *channel)
    inside = sequence >= 0 and token >= 0
    return Divergence(
        str(key),
        sequence,
        token,
        layout.chunk_of(sequence, token) if inside else None,
        index if role(rows.axes) == "shared" else channel,
        float(got[index]),
        float(wanted[index]),
        float(allowed[index]),
        len(wrong),
        len(ratio),
        _state(sample, sequence, token) if inside else None,
    )


def _state(sample: Sample, sequence: int, token: int) -> Tensor | None:
    """The reference's state of a sequence after a token: the final state of the tokens up to it."""
    if sample.op.carry is None:
        return None
    _, final, wants = sample.op.carry
    part = sample.alone(sequence).piece([(0, token + 1)])
    part = dataclasses.replace(part, options={**sample.options, wants: True})
    return vjp(sample.op.reference, part, gradients=False)[TensorKey(final)][0]
