"""The request of `@pytest.mark.packproof(...)`: its arguments, checked, and one CheckRequest for each test."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import pytest
import torch

from packproof.adapters.registry import PEERS
from packproof.harness.engine.request import CheckRequest, check_names, validate
from packproof.harness.pytest_plugin.options import option_value
from packproof.harness.results.names import SEED, is_seed, long_dtype, require_known, short_dtype
from packproof.harness.targets.location import Location, missing_target_reason
from packproof.properties.cases.domain import Domain
from packproof.properties.declaration import DEFAULT_DTYPES
from packproof.properties.laws.property import Property
from packproof.properties.op import Op
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.refs.errors import UsageError
from packproof.refs.wording import article

_RUN_OPTIONS = ("profile", "device", "seed", "expected_failures")
ARGUMENTS = tuple(field.name for field in fields(CheckRequest))
_TEXT = "a string"
_EXPECTED: Mapping[str, tuple[tuple[type, ...], str]] = {
    "op": ((str, Op), "the name of an op or a packproof.Op"),
    "device": ((str,), _TEXT),
    "profile": ((str,), _TEXT),
    "seed": ((int,), SEED),
    "timeout": ((int, float), "a number of seconds"),
    "max_time": ((int, float), "a number of seconds"),
    "promises": ((Promises,), "a packproof.Promises"),
    "sanitizer": ((str,), _TEXT),
    "replay_dir": ((str,), "the path of a folder"),
    "expected_failures": ((str,), "the path of a file"),
    **dict.fromkeys(("forward_only", "strict", "questions", "draw_configs", "fail_fast"), ((bool,), "True or False")),
}


def marker_arguments(marks: Sequence[pytest.Mark]) -> dict[str, Any]:
    """The arguments of the marker by name. UsageError for an unknown argument, or one of another type.

    marks: those on the test itself, or the nearest on its class or module.
    """
    if len(marks) > 1:
        raise UsageError(f"the test has {len(marks)} of these markers and checks one kernel; write a test for each")
    [mark] = marks
    _require_names(mark)
    if len(mark.args) > 1:
        raise UsageError(f"{len(mark.args)} arguments have no name; all but the first, the target, need one: op=...")
    if mark.args and "target" in mark.kwargs:
        raise UsageError(f"two targets: {mark.args[0]!r} and {mark.kwargs['target']!r}; expected one")
    values = {**dict(zip(["target"], mark.args, strict=False)), **mark.kwargs}
    values = {name: value for name, value in values.items() if value is not None}
    _require_target(values.get("target"))
    for name, value in values.items():
        if name in _EXPECTED:
            _require_type(name, value)
    for name in ("dtypes", "properties"):
        if name in values:
            values[name] = _entries(name, values[name])
    if "domain" in values:
        values["domain"] = _domain(values["domain"])
    return values


def request(values: Mapping[str, Any], run: Mapping[str, Any]) -> CheckRequest:
    """The request of these marker arguments in a run with these options.

    UsageError for an unknown name, a missing file or a number out of its range.
    """
    dtype_names = tuple(dict.fromkeys(map(long_dtype, values.get("dtypes", DEFAULT_DTYPES))))
    check_request = CheckRequest(**{"questions": bool(values.get("strict")), **values, **run, "dtypes": dtype_names})
    check_names(check_request)
    if isinstance(check_request.op, str) and ":" not in check_request.op:
        require_known("op", check_request.op, OPS)
    if isinstance(check_request.target, str) and check_request.target not in PEERS:
        Location.parse(check_request.target)
        if ".py:" in check_request.target and (reason := missing_target_reason(check_request.target)):
            raise UsageError(reason)
    if check_request.timeout is not None and not check_request.timeout > 0:
        raise UsageError(f"timeout: {check_request.timeout} seconds; expected a number above zero")
    if not is_seed(check_request.seed):
        raise UsageError(f"seed: {check_request.seed}; expected {SEED}")
    return check_request


def requests(marks: Sequence[pytest.Mark], config: pytest.Config) -> dict[str, CheckRequest]:
    """One request for each requested property and dtype, by test id.

    UsageError for a wrong marker, pytest.UsageError for a device that this machine lacks.
    """
    values = marker_arguments(marks)
    run = {name: option_value(config, name, values)[0] for name in _RUN_OPTIONS}
    run["device"] = run["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    check_request = request(values, run)
    if check_request.device == "cuda" and not torch.cuda.is_available():
        source = option_value(config, "device", values)[1]
        raise pytest.UsageError(
            f"{source} cuda: torch {torch.__version__} sees no CUDA device here; use --packproof-device cpu"
        )
    validate(check_request)
    return {
        f"{getattr(law, 'name', law)}-{short_dtype(dtype_name)}": replace(
            check_request, properties=(law,), dtypes=(dtype_name,)
        )
        for law in check_request.properties or tuple(check_request.laws)
        for dtype_name in check_request.dtypes or ()
    }


def _require_names(mark: pytest.Mark) -> None:
    for name in mark.kwargs:
        if name not in ARGUMENTS:
            close_matches = get_close_matches(name, ARGUMENTS, n=1)
            suggestion = f"; did you mean {close_matches[0]!r}?" if close_matches else ""
            raise UsageError(f"{name!r} is not an argument{suggestion}\n    its arguments: {', '.join(ARGUMENTS)}")


def _require_target(target: Any) -> None:
    if target is None or target == "":
        raise UsageError("it names no kernel; expected @pytest.mark.packproof('my_module:my_kernel', op=...)")
    if not isinstance(target, str) and not callable(target):
        raise UsageError(f"target is {_value_and_type(target)}; expected 'module:function' or a function")


def _require_type(name: str, value: Any) -> None:
    types, words = _EXPECTED[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"{name} is {_value_and_type(value)}; expected {words}")


def _entries(name: str, value: Any) -> tuple[Any, ...]:
    """The dtypes or properties as a tuple with at least one entry."""
    kinds, example = ((str,), "['fp32', 'bf16']") if name == "dtypes" else ((str, Property), "['packing']")
    if isinstance(value, (str, Property)) or not isinstance(value, Iterable):
        raise UsageError(f"{name} is {_value_and_type(value)}; expected a list: {name}={example}")
    if not (entries := tuple(value)):
        raise UsageError(f"{name} is empty, so that nothing would be checked; leave it out to check all")
    for entry in entries:
        if not isinstance(entry, kinds):
            raise UsageError(f"{name} has {_value_and_type(entry)}; expected names, such as {name}={example}")
    return entries


def _domain(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(f"domain is {_value_and_type(value)}; expected conditions, such as domain=['d % 8 == 0']")
    return Domain.of(texts).texts


def _value_and_type(value: Any) -> str:
    """A value of a wrong type, in words: "5, an int"."""
    return f"{value!r}, {article(type(value).__name__)}"
