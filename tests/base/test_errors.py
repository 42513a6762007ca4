"""Calls that do not fit a signature: what is said of them; other errors pass unchanged."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from packproof import refs
from packproof.base.errors import ArgumentError, checked_call, checked_init, copy_signature_of


@checked_call
def scaled(x: list[Any], factor: int = 1, *, offset: int) -> list[Any]:
    return [factor * one + offset for one in x]


@copy_signature_of(scaled)
def shifted(*args: Any, **options: Any) -> list[Any]:
    return moved("by", *args, **options)


def moved(how: str, x: list[Any], factor: int = 1, *, offset: int) -> list[Any]:
    return [how, *x, factor, offset]


@checked_init
@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


TAKES = "\n    It takes x, factor, offset."


@pytest.mark.parametrize(
    ("args", "options", "said"),
    [
        ((), {}, "x and offset are missing"),
        (([],), {}, "offset is missing"),
        (([],), {"offset": 1, "factors": 2}, "factors is no argument; did you mean factor?"),
        (([],), {"offset": 1, "zoom": 2}, "zoom is no argument"),
        (([], 1, 2), {}, "3 arguments came by position but at most 2 were expected"),
        (([],), {"offset": 1, "x": []}, "x came twice, by position and by name"),
    ],
)
@pytest.mark.parametrize("function", [scaled, shifted])
def test_a_call_that_does_not_fit(
    function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        function(*args, **options)
    assert str(caught.value) == f"{function.__name__}: {said}{TAKES}"
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_an_error_inside_passes_unchanged() -> None:
    with pytest.raises(TypeError, match="can only concatenate str"):
        scaled(["a"], offset=1)


def test_a_class_is_called_by_its_name() -> None:
    assert Point(1, 2) == Point(x=1, y=2)
    with pytest.raises(ArgumentError, match=r"Point: z is no argument\n    It takes x, y\."):
        Point(1, z=2)


@pytest.mark.parametrize(
    ("model", "form"), [(refs.ssd, refs.ssd_quadratic), (refs.selective_scan, refs.selective_scan_associative)]
)
def test_forms_of_an_op_have_its_signature(model: Callable[..., Any], form: Callable[..., Any]) -> None:
    assert inspect.signature(form) == inspect.signature(model)
