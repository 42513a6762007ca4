"""The case of a debugging tool: read from a replay file, given as a Case, or drawn for lengths and settings."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.harness.debug.own_tensors import Tool, check_seed, kind, near
from packproof.harness.engine.replay import check_fits
from packproof.harness.results.names import dtype as dtype_name
from packproof.harness.results.names import known
from packproof.harness.results.replay_file import read_replay
from packproof.properties.cases.case import SHORT, Case
from packproof.properties.cases.domain import Domain, axes, optional_inputs
from packproof.properties.cases.space import Space
from packproof.properties.declaration import brought_op
from packproof.refs.errors import ArgumentError, LayoutError, UsageError
from packproof.refs.packing import PackLayout
from packproof.refs.wording import article

EXPECTED = "expected a replay file, a Case, a PackLayout or the lengths of sequences, such as [3, 0, 5]"


@dataclass(frozen=True)
class Choices:
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

    def given(self) -> list[str]:
        """Names of the settings that are not None."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]


def from_file(tool_name: str, path: Path, op: Any, function: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """The content of a replay file, and the op. Raises UsageError if the file names an op by a path: a path from a file
    is never imported, the user has to pass it as `op`."""
    data = read_replay(path)
    named = data["op"]
    if op is None and ":" in named:
        op = brought_op(function)
        if op is None:
            way = f"which is imported only if you name it: op={named!r}"
            raise UsageError(f"{tool_name}: {path} names the op {named!r}, {way}")
    return data, named if op is None else op


def check_case(tool: Tool, case: Case, path: Path | None) -> Case:
    """The checked Case of a file or a user. Raises UsageError if it does not fit the op."""
    if path is not None:
        check_fits(case, tool.op, path)
        return case
    try:
        case = Case.from_json(json.loads(json.dumps(asdict(case))))
        known("dtype", case.dtype, SHORT)
        check_fits(case, tool.op, "case")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{tool.name}: the Case cannot be read: {error}") from None
    except UsageError as error:
        raise UsageError(f"{tool.name}: {str(error).replace('case: damaged, ', 'case: ')}") from None
    return case


def case_of(tool: Tool, given: Any, setting: Choices) -> Case:
    """The case of these lengths and settings. A setting of None takes its default.

    Raises ArgumentError naming the argument, LayoutError for the lengths, UsageError for an unknown dtype.
    """
    lengths, slack = check_layout(tool, given)
    dtype = _dtype(tool, setting.dtype) if setting.dtype is not None else tool.declared.dtypes[0]
    declared = tool.declared
    space = Space(tool.op, dtype, declared.promises, declared.parameters, fixed=declared.fixed)
    plain = dict(space.known_options({name: values[0] for name, values in space.options.items()}))
    case = Case(
        lengths,
        dtype,
        tuple(_sizes(tool, setting.sizes).items()),
        slack=slack,
        present=_present(tool, setting.present),
        options=tuple({**plain, **tool.options(setting.options)}.items()),
        seed=0 if setting.seed is None else check_seed(tool.name, setting.seed),
    )
    check_fits(replace(case, options=()), tool.op, tool.name)
    return case


def check_layout(tool: Tool, given: Any) -> tuple[tuple[int, ...], int]:
    """Lengths and slack of a list of lengths or a PackLayout. Raises ArgumentError for anything else."""
    if isinstance(given, Tensor):
        way = "PackLayout.from_cu_seqlens(x) of offsets, or x.tolist() of lengths"
        raise tool.fail(f"case is a tensor {tuple(given.shape)}, which may be lengths or offsets; expected {way}")
    try:
        layout = given if isinstance(given, PackLayout) else PackLayout.from_lengths(list(given))
    except (TypeError, LayoutError):
        shown = repr(given) if len(repr(given)) <= 60 else article(type(given).__name__)
        raise tool.fail(f"case is {shown}; {EXPECTED}") from None
    if layout.gaps:
        raise tool.fail(
            f"case has the gaps {layout.gaps}, which cu_seqlens cannot express; expected sequences in a row"
        )
    return layout.lengths, layout.slack


def _dtype(tool: Tool, given: Any) -> str:
    if isinstance(given, torch.dtype):
        given = str(given).removeprefix("torch.")
    if not isinstance(given, str):
        raise tool.fail(f"dtype is {kind(given)} but one of {', '.join(SHORT.values())} was expected")
    return dtype_name(given)


def _sizes(tool: Tool, given: Any) -> dict[str, Any]:
    """The sizes of the op's axes: its first declared set, updated with the user's sizes."""
    sizes = dict(tool.op.sizes[0])
    if given is None:
        return sizes
    if not isinstance(given, Mapping):
        raise tool.fail(f"sizes is {kind(given)} but a dict of sizes by axis was expected: {', '.join(axes(tool.op))}")
    for name, size in given.items():
        if name not in sizes:
            raise tool.fail(f"sizes has {name!r}{near(name, sizes)}; the axes of {tool.op.name} are {', '.join(sizes)}")
        if type(size) is not int or size < 1:
            raise tool.fail(f"sizes has {name} = {size!r} but an integer above 0 was expected")
        sizes[name] = size
    words = {name: size for name, size in sizes.items() if isinstance(size, int)}
    for condition in Domain.of(tool.op.where).conditions:
        if condition.names <= words.keys() and not condition.holds(words):
            named = ", ".join(f"{name} = {words[name]}" for name in sorted(condition.names))
            raise tool.fail(f"sizes has {named} but {tool.op.name} needs {condition.text}")
    return sizes


def _present(tool: Tool, given: Any) -> tuple[str, ...]:
    """The user's optional inputs, checked and in the order of the op."""
    optional = optional_inputs(tool.op)
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise tool.fail(f"present is {kind(given)} but a list of optional inputs was expected: {', '.join(optional)}")
    names = list(given)
    for name in names:
        if name not in optional:
            there = f"the optional inputs of {tool.op.name} are {', '.join(optional) or 'none'}"
            raise tool.fail(f"present has {name!r}{near(name, optional)}; {there}")
        tool.require_taken("input", name)
    return tuple(name for name in optional if name in names)
