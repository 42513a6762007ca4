"""The case of a debugging tool: read from a replay file, given as a Case, or drawn for lengths and settings."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError, LayoutError, UsageError
from packproof.base.names import SHORT_DTYPES, require_known
from packproof.base.names import long_dtype as dtype_name
from packproof.base.wording import article
from packproof.debug.own_tensors import Tool, check_seed, describe_value, suggest_name
from packproof.harness.check import check_fits
from packproof.harness.report.replay_files import read_replay
from packproof.properties.cases import Case, Domain, Space, optional_inputs, size_names
from packproof.properties.declarations import custom_op
from packproof.refs.packing import PackLayout

EXPECTED_CASE = "expected a replay file, a Case, a PackLayout or the lengths of sequences, such as [3, 0, 5]"


@dataclass(frozen=True)
class CaseSettings:
    """The user's settings of a drawn case, unchecked. None stands for the default."""

    dtype: Any = None
    """Name of a dtype, such as "bf16", or a torch.dtype."""
    sizes: Any = None
    """Sizes by axis."""
    present: Any = None
    """Names of optional inputs to draw."""
    options: Any = None
    """Options of the op by name."""
    seed: Any = None
    """Seed of the tensors."""

    def specified_names(self) -> list[str]:
        """Names of the settings that are not None."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]


def read_case_file(tool_name: str, path: Path, op: Any, function: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """The content of a replay file, and the op. Raises UsageError if the file names an op by a path: a path from a file
    is never imported, the user has to pass it as `op`."""
    data = read_replay(path)
    op_name = data["op"]
    if op is None and ":" in op_name:
        op = custom_op(function)
        if op is None:
            hint = f"which is imported only if you name it: op={op_name!r}"
            raise UsageError(f"{tool_name}: {path} names the op {op_name!r}, {hint}")
    return data, op_name if op is None else op


def check_case(tool: Tool, case: Case, path: Path | None) -> Case:
    """The checked Case of a file or a user. Raises UsageError if it does not fit the op."""
    if path is not None:
        check_fits(case, tool.op, path)
        return case
    try:
        case = Case.from_json(json.loads(json.dumps(asdict(case))))
        require_known("dtype", case.dtype, SHORT_DTYPES)
        check_fits(case, tool.op, "case")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{tool.name}: the Case cannot be read: {error}") from None
    except UsageError as error:
        raise UsageError(f"{tool.name}: {str(error).replace('case: damaged, ', 'case: ')}") from None
    return case


def case_from_lengths(tool: Tool, lengths_or_layout: Any, settings: CaseSettings) -> Case:
    """The case of these lengths and settings. A setting of None takes its default.

    Raises ArgumentError naming the argument, LayoutError for the lengths, UsageError for an unknown dtype.
    """
    lengths, slack = check_layout(tool, lengths_or_layout)
    dtype = _dtype(tool, settings.dtype) if settings.dtype is not None else tool.declaration.dtypes[0]
    declaration = tool.declaration
    space = Space(tool.op, dtype, declaration.promises, declaration.parameters, fixed=declaration.fixed)
    default_options = dict(space.known_options({name: values[0] for name, values in space.options.items()}))
    case = Case(
        lengths,
        dtype,
        tuple(_sizes(tool, settings.sizes).items()),
        slack=slack,
        present=_present(tool, settings.present),
        options=tuple({**default_options, **tool.options(settings.options)}.items()),
        seed=0 if settings.seed is None else check_seed(tool.name, settings.seed),
    )
    check_fits(replace(case, options=()), tool.op, tool.name)
    return case


def check_layout(tool: Tool, lengths_or_layout: Any) -> tuple[tuple[int, ...], int]:
    """Lengths and slack of a list of lengths or a PackLayout. Raises ArgumentError for anything else."""
    if isinstance(lengths_or_layout, Tensor):
        expected = "PackLayout.from_cu_seqlens(x) of offsets, or x.tolist() of lengths"
        raise tool.fail(
            f"case is a tensor {tuple(lengths_or_layout.shape)}, which may be lengths or offsets; expected {expected}"
        )
    try:
        layout = (
            lengths_or_layout
            if isinstance(lengths_or_layout, PackLayout)
            else PackLayout.from_lengths(list(lengths_or_layout))
        )
    except (TypeError, LayoutError):
        text = (
            repr(lengths_or_layout) if len(repr(lengths_or_layout)) <= 60 else article(type(lengths_or_layout).__name__)
        )
        raise tool.fail(f"case is {text}; {EXPECTED_CASE}") from None
    if layout.gaps:
        raise tool.fail(
            f"case has the gaps {layout.gaps}, which cu_seqlens cannot express; expected sequences in a row"
        )
    return layout.lengths, layout.slack


def _dtype(tool: Tool, dtype: Any) -> str:
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, str):
        raise tool.fail(f"dtype is {describe_value(dtype)} but one of {', '.join(SHORT_DTYPES.values())} was expected")
    return dtype_name(dtype)


def _sizes(tool: Tool, overrides: Any) -> dict[str, Any]:
    """The sizes of the op's axes: its first declared set, updated with the user's sizes."""
    sizes = dict(tool.op.sizes[0])
    if overrides is None:
        return sizes
    if not isinstance(overrides, Mapping):
        raise tool.fail(
            f"sizes is {describe_value(overrides)} but a dict of sizes by axis was expected: "
            f"{', '.join(size_names(tool.op))}"
        )
    for name, size in overrides.items():
        if name not in sizes:
            raise tool.fail(
                f"sizes has {name!r}{suggest_name(name, sizes)}; the axes of {tool.op.name} are {', '.join(sizes)}"
            )
        if type(size) is not int or size < 1:
            raise tool.fail(f"sizes has {name} = {size!r} but an integer above 0 was expected")
        sizes[name] = size
    int_sizes = {name: size for name, size in sizes.items() if isinstance(size, int)}
    for condition in Domain.of(tool.op.where).conditions:
        if condition.names <= int_sizes.keys() and not condition.holds(int_sizes):
            actual_sizes = ", ".join(f"{name} = {int_sizes[name]}" for name in sorted(condition.names))
            raise tool.fail(f"sizes has {actual_sizes} but {tool.op.name} needs {condition.text}")
    return sizes


def _present(tool: Tool, inputs: Any) -> tuple[str, ...]:
    """The user's optional inputs, checked and in the order of the op."""
    optional = optional_inputs(tool.op)
    if inputs is None:
        return ()
    if isinstance(inputs, str) or not isinstance(inputs, Iterable):
        raise tool.fail(
            f"present is {describe_value(inputs)} but a list of optional inputs was expected: {', '.join(optional)}"
        )
    names = list(inputs)
    for name in names:
        if name not in optional:
            known_inputs = f"the optional inputs of {tool.op.name} are {', '.join(optional) or 'none'}"
            raise tool.fail(f"present has {name!r}{suggest_name(name, optional)}; {known_inputs}")
        tool.require_parameter("input", name)
    return tuple(name for name in optional if name in names)
