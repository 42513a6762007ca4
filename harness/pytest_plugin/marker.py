"""The request of `@pytest.mark.packproof(...)`: its arguments, checked, and one CheckRequest for each test."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import pytest
import torch

from packproof.adapters.registry import PEERS
from packproof.harness.engine.request import CheckRequest, check_names, validate
from packproof.harness.pytest_plugin.options import chosen
from packproof.harness.results.names import SEED, dtype, is_seed, known, short
from packproof.harness.targets.location import Location, absent
from packproof.properties.cases.domain import Domain
from packproof.properties.declaration import DEFAULT_DTYPES
from packproof.properties.laws.property import Property
from packproof.properties.op import Op
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.refs.errors import UsageError
from packproof.refs.wording import article

_OF_THE_RUN = ("profile", "device", "seed", "expected_failures")
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


def arguments(marks: Sequence[pytest.Mark]) -> dict[str, Any]:
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
    given = {**dict(zip(["target"], mark.args, strict=False)), **mark.kwargs}
    given = {name: value for name, value in given.items() if value is not None}
    _require_target(given.get("target"))
    for name, value in given.items():
        if name in _EXPECTED:
            _require_type(name, value)
    for name in ("dtypes", "properties"):
        if name in given:
            given[name] = _listed(name, given[name])
    if "domain" in given:
        given["domain"] = _domain(given["domain"])
    return given


def request(given: Mapping[str, Any], run: Mapping[str, Any]) -> CheckRequest:
    """The request of these marker arguments in a run with these options.

    UsageError for an unknown name, a missing file or a number out of its range.
    """
    kinds = tuple(dict.fromkeys(map(dtype, given.get("dtypes", DEFAULT_DTYPES))))
    asked = CheckRequest(**{"questions": bool(given.get("strict")), **given, **run, "dtypes": kinds})
    check_names(asked)
    if isinstance(asked.op, str) and ":" not in asked.op:
        known("op", asked.op, OPS)
    if isinstance(asked.target, str) and asked.target not in PEERS:
        Location.parse(asked.target)
        if ".py:" in asked.target and (reason := absent(asked.target)):
            raise UsageError(reason)
    if asked.timeout is not None and not asked.timeout > 0:
        raise UsageError(f"timeout: {asked.timeout} seconds; expected a number above zero")
    if not is_seed(asked.seed):
        raise UsageError(f"seed: {asked.seed}; expected {SEED}")
    return asked


def requests(marks: Sequence[pytest.Mark], config: pytest.Config) -> dict[str, CheckRequest]:
    """One request for each requested property and dtype, by test id.

    UsageError for a wrong marker, pytest.UsageError for a device that this machine lacks.
    """
    given = arguments(marks)
    run = {name: chosen(config, name, given)[0] for name in _OF_THE_RUN}
    run["device"] = run["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    asked = request(given, run)
    if asked.device == "cuda" and not torch.cuda.is_available():
        where = chosen(config, "device", given)[1]
        raise pytest.UsageError(
            f"{where} cuda: torch {torch.__version__} sees no CUDA device here; use --packproof-device cpu"
        )
    validate(asked)
    return {
        f"{getattr(law, 'name', law)}-{short(kind)}": replace(asked, properties=(law,), dtypes=(kind,))
        for law in asked.properties or tuple(asked.laws)
        for kind in asked.dtypes or ()
    }


def _require_names(mark: pytest.Mark) -> None:
    for name in mark.kwargs:
        if name not in ARGUMENTS:
            near = get_close_matches(name, ARGUMENTS, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{name!r} is not an argument{meant}\n    its arguments: {', '.join(ARGUMENTS)}")


def _require_target(target: Any) -> None:
    if target is None or target == "":
        raise UsageError("it names no kernel; expected @pytest.mark.packproof('my_module:my_kernel', op=...)")
    if not isinstance(target, str) and not callable(target):
        raise UsageError(f"target is {_described(target)}; expected 'module:function' or a function")


def _require_type(name: str, value: Any) -> None:
    types, words = _EXPECTED[name]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"{name} is {_described(value)}; expected {words}")


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    """The dtypes or properties as a tuple with at least one entry."""
    kinds, example = ((str,), "['fp32', 'bf16']") if name == "dtypes" else ((str, Property), "['packing']")
    if isinstance(value, (str, Property)) or not isinstance(value, Iterable):
        raise UsageError(f"{name} is {_described(value)}; expected a list: {name}={example}")
    if not (entries := tuple(value)):
        raise UsageError(f"{name} is empty, so that nothing would be checked; leave it out to check all")
    for entry in entries:
        if not isinstance(entry, kinds):
            raise UsageError(f"{name} has {_described(entry)}; expected names, such as {name}={example}")
    return entries


def _domain(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(f"domain is {_described(value)}; expected conditions, such as domain=['d % 8 == 0']")
    return Domain.of(texts).texts


def _described(value: Any) -> str:
    """A value of a wrong type, in words: "5, an int"."""
    return f"{value!r}, {article(type(value).__name__)}"
