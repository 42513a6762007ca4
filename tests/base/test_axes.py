"""Specs of axes: what they parse to, and the message for an invalid one."""

import pytest

from packproof.base.axes import Spec, is_shared, parse, role, shape
from packproof.refs import UsageError


def test_a_spec_has_alternatives_and_may_be_optional() -> None:
    assert parse("t n | t g n") == Spec((("t", "n"), ("t", "g", "n")), optional=False)
    assert parse("h | h p?") == Spec((("h",), ("h", "p")), optional=True)
    assert parse("") == Spec(((),), optional=False)


def test_sizes_follow_from_bases_and_shifts() -> None:
    assert shape(("s", "d", "w-1", "2"), {"s": 3, "d": 5, "w": 4}) == (3, 5, 3, 2)


def test_the_leading_axis_decides_the_role() -> None:
    assert [role(axes) for axes in (("t", "d"), ("s", "d"), ("d",), ())] == ["token", "sequence", "shared", "shared"]
    assert [is_shared(axes) for axes in (("t", "d"), ("s", "d"), ("c", "d"), ("d",), ())] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("wrong", ["w+1", "w-", "w-n", "t,", "-1"])
def test_what_is_not_an_axis_is_named(wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(f"t {wrong}")
    assert str(caught.value) == f"axes: {wrong!r} is not an axis; expected a name such as d, or w-1 for one less than w"
