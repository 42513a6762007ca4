"""Wrong calls of packproof.check and packproof.replay: refused before a kernel runs."""

from functools import partial
from typing import Any

import pytest

import packproof
from packproof import refs
from tests.wrong_calls.refused import Wrong, assert_refused

GOOD: dict[str, Any] = {"op": "rope", "device": "cpu", "dtypes": ["fp32"], "properties": ["packing"]}
check: Any = packproof.check
replay: Any = packproof.replay


def but(**changes: Any) -> Any:
    return partial(check, refs.rope, **{**GOOD, **changes})


WRONG: dict[str, tuple[Any, ...]] = {
    "op": (5, ["rope"]),
    "device": (5, True),
    "dtypes": ("fp32", 32, {"fp32": 1}),
    "properties": ("packing", 3),
    "profile": (3, None),
    "seed": ("0", 1.5, None, True, -1, 2**32, 10**60),
    "promises": ("sequence", {"grid": "sequence"}),
    "domain": (5, [5], None),
    "timeout": ("5", 0, -1, True),
    "max_time": ("60s", 0, -1),
    "strict": ("yes", 1),
    "forward_only": ("no", 0),
    "fail_fast": ("x", None),
}
TABLE: dict[str, Wrong] = {
    **{
        f"{name} is {value!r}": Wrong(but(**{name: value}), (f"check: {name} is {value!r}", "expected"))
        for name, values in WRONG.items()
        for value in values
    },
    "dtypes of a number": Wrong(but(dtypes=[32]), ("check: dtypes has 32, an int", "['fp32', 'bf16']")),
    "dtypes empty": Wrong(but(dtypes=[]), ("check: dtypes is empty", "leave it out")),
    "properties of a number": Wrong(but(properties=["packing", 3]), ("check: properties has 3, an int", "['packing']")),
    "properties with None": Wrong(but(properties=[None]), ("check: properties has None; expected a list of names",)),
    "no such op": Wrong(but(op="rop"), ("no op is called 'rop'", "did you mean rope?")),
    "no such device": Wrong(but(device="gpu"), ("no device is called 'gpu'", "cuda")),
    "no such dtype": Wrong(but(dtypes=["fp23"]), ("no dtype is called 'fp23'", "there are: ")),
    "no such property": Wrong(but(properties=["packin"]), ("no property is called 'packin'", "did you mean packing?")),
    "no such profile": Wrong(but(profile="fast"), ("no profile is called 'fast'", "quick")),
    "no condition": Wrong(but(domain="k in"), ("domain: 'k in' cannot be read",)),
    "two conditions with a comma": Wrong(but(domain="length > 0, k == 8"), ("write 'length > 0; k == 8'",)),
    "a size for a condition": Wrong(but(domain="k"), ("domain has 'k' without a comparison in 'k'; write 'k == 8'",)),
    "no target": Wrong(check, ("check: target is missing", "It takes target, op, device")),
    "a target of None": Wrong(partial(check, None, op="rope"), ("check: target is None", "a function or its name")),
    "a number for a target": Wrong(partial(check, 5, op="rope"), ("check: target is 5",)),
    "an empty target": Wrong(partial(check, "", op="rope"), ("target ''", "package.module:function")),
    "a name in the singular": Wrong(but(dtype="fp32"), ("check: dtype is no argument; did you mean dtypes?",)),
    "two by position": Wrong(partial(check, refs.rope, "rope"), ("2 arguments came by position", "at most 1")),
    "replay of nothing": Wrong(replay, ("replay: path is missing", "It takes path, target, device, maps")),
    "replay of no file": Wrong(partial(replay, "no/such.json"), ("no/such.json",)),
    "replay with a typo": Wrong(partial(replay, "x.json", map=True), ("map is no argument; did you mean maps?",)),
}


@pytest.mark.parametrize("wrong", TABLE.values(), ids=TABLE.keys())
def test_it_is_refused(wrong: Wrong) -> None:
    assert_refused(wrong)
