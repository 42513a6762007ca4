"""Where a kernel first diverges from its reference, and everywhere else: tokens, sequences, chunks and channels."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import is_in_pool, role
from packproof.base.errors import ArgumentError, UsageError, checked_call
from packproof.base.light_torch import argmax
from packproof.base.names import require_known
from packproof.base.wording import plural
from packproof.debug.cases import (
    EXPECTED_CASE,
    CaseSettings,
    case_from_lengths,
    check_case,
    check_layout,
    read_case_file,
)
from packproof.debug.local import LocalRunner
from packproof.debug.own_tensors import Tool, check_seed, describe_value, run_reference, sample_of_tensors
from packproof.debug.rows import RowRange, ranges
from packproof.harness.process.naming import Location
from packproof.harness.report.maps import Layout, compact
from packproof.properties.bounds import score, vjp
from packproof.properties.calling import TensorKey
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.ops import Op
from packproof.refs.packing import PackLayout

_MAX_NUMBERS = 64
_MAX_RANGES = 8
_NAME = "diff"


@dataclass(frozen=True)
class Divergence:
    """The first wrong row of one tensor with its worst channel, and all ranges of wrong rows."""

    tensor: str
    """Name of the tensor, such as "y" or "gradient of x"."""
    sequence: int
    """Sequence of the first wrong row; -1 for slack and for tensors without sequences."""
    token: int
    """Position of the first wrong row in its sequence, or in the slack; -1 if rows are not tokens."""
    chunk: int | None
    """Chunk of that token in the kernel's promised grid, counted from the start of the grid; None without a grid."""
    channel: tuple[int, ...]
    """Index of the worst element after the row; the whole index for a shared tensor."""
    got: float
    """The kernel's value at that element."""
    expected: float
    """The reference's value at that element."""
    budget: float
    """The allowed difference at that element."""
    rows: int
    """Number of wrong rows."""
    of: int
    """Number of all rows."""
    ranges: tuple[RowRange, ...] = ()
    """The wrong rows, as runs of rows."""
    state: Tensor | None = field(default=None, compare=False)
    """The reference's state of the sequence after that token, for an output of an op with a state. None for
    gradients."""
    slot: int = -1
    """Slot in a pool of states; -1 for other tensors."""

    def __str__(self) -> str:
        tensor_label = "shared" if self.slot < 0 else f"slot {self.slot}"
        location = (
            [f"sequence {self.sequence}"] if self.sequence >= 0 else ["slack"] if self.token >= 0 else [tensor_label]
        )
        location += [f"token {self.token}"] if self.token >= 0 else []
        location += [f"chunk {self.chunk}"] if self.chunk is not None else []
        location += [f"channel {list(self.channel)}"] if self.channel else []
        error = abs(self.got - self.expected) / self.budget if self.budget else float("inf")
        values = f"got {self.got:.6g}, expected {self.expected:.6g}, {compact(error)} x the budget {self.budget:.2g}"
        return "\n".join(
            [f"{self.tensor}: {', '.join(location)}: {values}", self._wrong_rows_text(), *self._state_lines()]
        )

    def _wrong_rows_text(self) -> str:
        verb = "is" if self.rows == 1 else "are"
        shown_ranges = "; ".join(map(str, self.ranges[:_MAX_RANGES]))
        n_hidden = len(self.ranges) - _MAX_RANGES
        truncation = f"; and {plural(n_hidden, 'run')} of rows more, in .ranges" if n_hidden > 0 else ""
        return f"  {self.rows} of {plural(self.of, 'row')} {verb} wrong: {shown_ranges}{truncation}"

    def _state_lines(self) -> list[str]:
        if self.state is None:
            return []
        if self.state.numel() > _MAX_NUMBERS:
            return [f"  the state after it is in .state, {tuple(self.state.shape)}"]
        numbers = str(self.state.numpy().round(4)).splitlines()
        return ["  the state after it:", *(f"    {line}" for line in numbers)]


@dataclass(frozen=True)
class Diff:
    """All outputs and gradients that diverge from their reference, in the order of the op. False if there are none.

    >>> import packproof
    >>> conv = packproof.refs.causal_conv1d
    >>> result = packproof.diff(conv, [3, 0, 5], op="causal_conv1d")
    >>> bool(result), result.tensors
    (False, ('y', 'gradient of x', 'gradient of weight'))
    >>> print(result)
    lengths [3, 0, 5], fp32, d=3 w=4, seed 0
    every output and gradient lies within its budget
    """

    case: Case | None
    """The case of the run; None for tensors of your own."""
    divergences: tuple[Divergence, ...]
    """One for each tensor that diverges."""
    tensors: tuple[str, ...] = ()
    """Names of all compared tensors."""
    setting: str = ""
    """The run in one line: lengths, dtype, sizes, seed."""

    def __bool__(self) -> bool:
        return bool(self.divergences)

    def __str__(self) -> str:
        lines = [str(divergence) for divergence in self.divergences]
        single_tensor_text = f"{self.tensors[0]} lies within its budget" if len(self.tensors) == 1 else ""
        return "\n".join(
            [self.setting, *(lines or [single_tensor_text or "every output and gradient lies within its budget"])]
        )

    def only(self, names: Iterable[str]) -> "Diff":
        """The same result for these tensors alone.

        names: as in `tensors`, or short: "y", "gradient of x" or "dx".

        Raises UsageError for a tensor that was not compared.
        """
        short = {f"d{name.removeprefix('gradient of ')}": name for name in self.tensors if name.startswith("gradient")}
        selected_names = {short.get(require_known("tensor", name, [*self.tensors, *short]), name) for name in names}
        return dataclasses.replace(
            self,
            divergences=tuple(d for d in self.divergences if d.tensor in selected_names),
            tensors=tuple(name for name in self.tensors if name in selected_names),
        )


@checked_call
def diff(
    kernel: str | Callable[..., Any],
    reference: Callable[..., Any] | str | Path | Case | PackLayout | Sequence[int] | None = None,
    case: str | Path | Case | PackLayout | Sequence[int] | None = None,
    *,
    op: str | Op | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    sizes: Mapping[str, int] | None = None,
    present: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    cotangents: Mapping[str, Tensor] | None = None,
) -> Diff:
    """Find where a kernel diverges from its reference, in each output and gradient. Runs in this process.

    kernel: a function, or its name as in `packproof check`.
    reference: another function with the op's arguments, such as the kernel before an edit. Default: the op's reference
        in float64.
    case: lengths of sequences, a PackLayout, a Case, or a replay file. It may come second if there is no other
        reference.
    op: name of the op, or an Op. Needed if neither the kernel nor the replay file names one.
    device: "cpu" (default) or "cuda".

    With lengths, tensors are drawn, by these settings:

    dtype: such as "bf16".
    sizes: sizes of axes, such as {"d": 64}.
    present: optional inputs to draw.
    options: options of the op, such as {"activation": "silu"}.
    seed: another seed draws other tensors.

    Or pass the tensors:

    inputs: tensors by name.
    cotangents: incoming gradients by output name, drawn if missing.

    A Triton kernel on the CPU runs in another process under Triton's interpreter, unless this process was started with
    TRITON_INTERPRET=1. A closure needs TRITON_INTERPRET=1, because no other process can import it.

    Raises ArgumentError for an argument that does not fit the op. Raises UsageError for an unknown name, for a replay
    file that is unreadable or does not fit, and for a Triton kernel on the CPU that no other process can import.
    Raises another PackproofError if the kernel raises, or declines the call.

    >>> import packproof
    >>> def late(x, weight, *, cu_seqlens):
    ...     y = packproof.refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
    ...     return y * (x.new_ones(len(x), 1).cumsum(0) < 5)
    >>> result = packproof.diff(late, [3, 0, 5], op="causal_conv1d", seed=1)
    >>> [str(rows) for rows in result.divergences[0].ranges]
    ['rows 4 to 7 (sequence 2, tokens 1 to 4)']
    """
    if reference is not None and not callable(reference):
        if case is not None:
            raise ArgumentError(f"{_NAME}: reference is {describe_value(reference)} but a function was expected")
        reference, case = None, reference
    if not isinstance(device, str | None):
        raise ArgumentError(f"{_NAME}: device is {describe_value(device)} but 'cpu' or 'cuda' was expected")
    function = Location.parse(kernel).load() if isinstance(kernel, str) else kernel
    settings = CaseSettings(dtype, sizes, present, options, seed)
    path = Path(case) if isinstance(case, str | Path) else None
    data: dict[str, Any] = {}
    if path is not None:
        data, op = read_case_file(_NAME, path, op, function)
        case = data["case"]
    tool = Tool.create(_NAME, function, op, kernel if isinstance(kernel, str) else "", data.get("promises"))
    if data:
        declaration = dataclasses.replace(tool.declaration, gradients=data["gradients"])
        tool = dataclasses.replace(tool, declaration=declaration)
    if case is None:
        raise tool.fail(f"case is missing; {EXPECTED_CASE}")
    run_device = _device(device, inputs)
    with ExitStack() as stack:
        name = kernel if isinstance(kernel, str) else ""
        runner = stack.enter_context(closing(LocalRunner(function, run_device, name=name)))
        declaration = tool.declaration
        subject = KernelUnderTest(
            tool.op, runner, declaration.promises, gradients=declaration.gradients, domain=declaration.domain
        )
        reference_kernel = None
        if reference is not None:
            Tool.create(_NAME, reference, tool.op)
            reference_kernel = KernelUnderTest(
                tool.op, stack.enter_context(closing(LocalRunner(reference, run_device))), declaration.promises
            )
        tested_case, sample, setting = _sample(tool, subject, case, path, settings, inputs, cotangents)
        divergences, tensors = _divergences(tool, subject, reference_kernel, sample)
        return Diff(tested_case, divergences, tensors, setting)


def _sample(
    tool: Tool,
    subject: KernelUnderTest,
    case: Any,
    path: Path | None,
    settings: CaseSettings,
    inputs: Any,
    cotangents: Any,
) -> tuple[Case | None, Sample, str]:
    """The case (None for the user's tensors), its tensors, and a description in one line."""
    if cotangents is not None and inputs is None:
        raise tool.fail("cotangents were given without inputs; expected the tensors of the call too")
    if isinstance(case, Case):
        conflicts = settings.specified_names() + (["inputs"] if inputs is not None else [])
        if conflicts:
            reason = f"{path or 'the Case'} has its own"
            raise tool.fail(
                f"{conflicts[0]} was given but {reason}; expected lengths, or case.replace({conflicts[0]}=...)"
            )
        case = check_case(tool, case, path)
    elif inputs is not None:
        ignored_settings = [name for name in settings.specified_names() if name not in ("options", "seed")]
        if ignored_settings:
            raise tool.fail(
                f"{ignored_settings[0]} was given beside inputs, which have their own; expected one of the two"
            )
        return None, *_sample_of_tensors(tool, case, settings, inputs, cotangents)
    else:
        case = case_from_lengths(tool, case, settings)
    return case, subject.sample(case), str(case)


def _sample_of_tensors(
    tool: Tool, case: Any, settings: CaseSettings, inputs: Any, cotangents: Any
) -> tuple[Sample, str]:
    lengths, slack = check_layout(tool, case)
    seed = 0 if settings.seed is None else check_seed(_NAME, settings.seed)
    sample = sample_of_tensors(tool, inputs, PackLayout(lengths).cu_seqlens(), settings.options, cotangents, seed)
    if slack not in (0, sample.slack):
        raise tool.fail(f"case has {plural(slack, 'row')} of slack but the tensors have {sample.slack}")
    token_dtype = sample.token_dtype_name
    equivalent_case = Case(
        lengths, token_dtype, tuple(sample.sizes.items()), slack=sample.slack, options=tuple(sample.options.items())
    )
    return sample, f"{str(equivalent_case).rpartition(', seed')[0]}, tensors of your own"


def _device(device: str | None, inputs: Any) -> str:
    """The user's device, by default that of the tensors. Raises UsageError if torch cannot use it."""
    if device is None:
        first_tensor = (
            next((x for x in inputs.values() if isinstance(x, Tensor)), None) if isinstance(inputs, Mapping) else None
        )
        return "cpu" if first_tensor is None else str(first_tensor.device)
    require_known("device", device.partition(":")[0], ("cpu", "cuda"))
    if device != "cpu" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use device='cpu'")
    return device


def _divergences(
    tool: Tool, subject: KernelUnderTest, reference_kernel: KernelUnderTest | None, sample: Sample
) -> tuple[tuple[Divergence, ...], tuple[str, ...]]:
    """The divergences, and the names of all compared tensors."""
    reference = run_reference(tool, lambda: subject.expect(sample))
    results = subject.run(sample)
    expected = (
        reference.values if reference_kernel is None else reference_kernel.run(sample, gradients=subject.gradients)
    )
    layout = Layout.from_promises(sample.lengths, sample.slack, subject.promises)

    def iterate_divergences() -> Iterator[Divergence]:
        for key, x in results.items():
            # two kernels may err in opposite directions, each by its whole budget
            budget = reference.budgets[key].total * (1 if reference_kernel is None else 2)
            rows = [t if t.ndim else t[None] for t in (x, expected[key], budget)]
            ratio = score(rows[0], rows[1].double(), rows[2])
            row_ratios = ratio.reshape(len(ratio), -1).amax(1) if ratio.numel() else ratio.new_zeros(0)
            wrong_rows = (row_ratios > 1).nonzero().flatten().tolist()
            if wrong_rows:
                yield _divergence(subject, sample, layout, key, (*rows, ratio), wrong_rows)

    return tuple(iterate_divergences()), tuple(str(key) for key in results if not reference.budgets[key].vacuous)


def _divergence(
    subject: KernelUnderTest,
    sample: Sample,
    layout: Layout,
    key: TensorKey,
    values: Sequence[Tensor],
    wrong_rows: Sequence[int],
) -> Divergence:
    actual, expected, budget, ratio = values
    row, row_map = wrong_rows[0], subject.row_map(key, sample)
    channel = argmax(ratio[row])
    sequence, token = row_map.locate(row)
    index = (row, *channel)
    is_token = sequence >= 0 and token >= 0
    slot = row if is_in_pool(row_map.axes) else -1
    return Divergence(
        str(key),
        sequence,
        token,
        layout.chunk_of(sequence, token) if is_token else None,
        index if role(row_map.axes) == "shared" and slot < 0 else channel,
        float(actual[index]),
        float(expected[index]),
        float(budget[index]),
        len(wrong_rows),
        len(ratio),
        ranges(wrong_rows, row_map, layout),
        _reference_state(sample, sequence, token) if is_token and not key.is_gradient else None,
        slot,
    )


def _reference_state(sample: Sample, sequence: int, token: int) -> Tensor | None:
    """The reference's state of a sequence after a token: the final state of a run over the tokens up to it."""
    if sample.op.carry is None:
        return None
    _, state_name, return_option = sample.op.carry
    prefix = sample.alone(sequence).piece([(0, 0, token + 1)])
    prefix = dataclasses.replace(prefix, options={**sample.options, return_option: True})
    return vjp(sample.op.reference, prefix, gradients=False)[TensorKey(state_name)][0]
