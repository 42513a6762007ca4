"""The request of `@pytest.mark.packproof(...)`: its arguments, checked, and one CheckRequest for each test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import pytest
import torch

from packproof.base.errors import UsageError
from packproof.base.names import short_dtype
from packproof.harness.check import OPTIONS, CheckRequest, checked, validate
from packproof.harness.process.naming import missing_target_reason
from packproof.harness.pytest.options import option_value
from packproof.properties.declarations import DEFAULT_DTYPES

_RUN_OPTIONS = ("profile", "device", "seed", "expected_failures", "contract")


def marker_arguments(marks: Sequence[pytest.Mark]) -> dict[str, Any]:
    """The arguments of the marker by name, without those of None. UsageError for an unknown argument or no target.

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
    if values.get("target", "") == "":
        raise UsageError("it names no kernel; expected @pytest.mark.packproof('my_module:my_kernel', op=...)")
    return values


def request(values: Mapping[str, Any], run: Mapping[str, Any]) -> CheckRequest:
    """The request of these marker arguments in a run with these options.

    UsageError for an invalid value, an unknown name or a missing file.
    """
    values = {"questions": bool(values.get("strict")), **values, **run}
    if values.get("contract") is None:
        values = {"dtypes": DEFAULT_DTYPES, **values}
    check_request = checked(values)
    if isinstance(target := check_request.target, str) and ".py:" in target and (why := missing_target_reason(target)):
        raise UsageError(why)
    return replace(check_request, dtypes=tuple(dict.fromkeys(check_request.dtypes or ())))


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
        if name not in OPTIONS:
            close_matches = get_close_matches(name, OPTIONS, n=1)
            suggestion = f"; did you mean {close_matches[0]!r}?" if close_matches else ""
            raise UsageError(f"{name!r} is not an argument{suggestion}\n    its arguments: {', '.join(OPTIONS)}")
