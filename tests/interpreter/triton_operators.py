"""`python -m tests.interpreter.triton_operators sample|all`: results of every operator, as JSON.

First through packproof's numpy path, then through Triton's frontend alone. "all": for each pair of operands; "sample":
for a seventh of the pairs of tensors, with all pairs of dtypes, and for a third of those with a number.
"""

import hashlib
import json
import operator
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from packproof.interpreter import operators, repair

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "rshift"),
        *("lt", "le", "gt", "ge", "eq", "ne"),
    )
}
SHAPES = ((), (4,), (4, 1), (1, 4), (2, 4), (8,))
VALUES = {
    tl.int1: [True, False, True, True, False, True, False, False],
    tl.int16: [7, -8, 3, 2**15 - 1, -(2**15), 1, -1, 5],
    tl.int32: [7, -8, 3, 2**31 - 1, -(2**31), 1, -1, 5],
    tl.int64: [7, -8, 3, 2**40, -(2**40), 1, -1, 5],
    tl.uint32: [7, 8, 3, 2**32 - 1, 2, 1, 4, 5],
    tl.float16: [0.5, -0.0, 3e-8, 6e4, float("nan"), float("inf"), -2.0, 1 / 3],
    tl.bfloat16: [0x3F00, 0x8000, 0x0001, 0x7F7F, 0x7FC0, 0x7F80, 0xC000, 0x3EAB],
    tl.float32: [0.5, -0.0, 1e-42, 3e38, float("nan"), float("inf"), -2.0, 1 / 3],
    tl.float64: [0.5, -0.0, 1e-310, 1e300, float("nan"), float("inf"), -2.0, 1 / 3],
}
NUMBERS = (0, 1, -3, 2**31, 0.5, -0.0, float("-inf"), 1e300, True)


def tensors() -> dict[str, Any]:
    found = {}
    for dtype, values in VALUES.items():
        kind = np.uint16 if dtype == tl.bfloat16 else bool if dtype == tl.int1 else dtype.name.replace("fp", "float")
        for shape in SHAPES:
            data = np.array(values).astype(kind)[: int(np.prod(shape))].reshape(shape or (1,))
            found[f"{dtype}{list(shape)}"] = tl.tensor(
                TensorHandle(data, dtype), tl.block_type(dtype, list(shape)) if shape else dtype
            )
    return found


def outcome(function: Callable[..., Any], *operands: Any) -> str:
    try:
        result = function(*operands)
    except Exception as error:
        return type(error).__name__
    data = np.ascontiguousarray(result.handle.data)
    return f"{result.type} {data.dtype} {data.shape} {hashlib.sha1(data.tobytes()).hexdigest()}"


def outcomes(way: str, pairs: str) -> dict[str, str]:
    """Each in a process of its own."""
    if way == "triton":
        operators.repair = lambda: None
    repair.install()
    found, known = {}, tensors()
    one_of = (7, 3) if pairs == "sample" else (1, 1)
    choose = tl.tensor(TensorHandle(np.array([True, False, False, True]), tl.int1), tl.block_type(tl.int1, [4]))
    sums = tl.tensor(TensorHandle(np.full((4, 4), -0.0, np.float32), tl.float32), tl.block_type(tl.float32, [4, 4]))
    functions = BINARY | {
        "dot": tl.dot,
        "dot added up": lambda x, y: tl.dot(x, y, sums),
        "minimum": tl.minimum,
        "maximum": tl.maximum,
        "where": lambda x, y: tl.where(choose, x, y),
    }
    with np.errstate(all="ignore"):
        for i, (left, x) in enumerate(known.items()):
            for dtype in VALUES:
                found[f"{left} to {dtype}"] = outcome(x.to, dtype)
                found[f"{left} as {dtype}"] = outcome(partial(x.to, bitcast=True), dtype)
            for name, function in functions.items():
                for right, y in list(known.items())[i % one_of[0] :: one_of[0]]:
                    found[f"{name} {left} {right}"] = outcome(function, x, y)
                for number in NUMBERS[i % one_of[1] :: one_of[1]]:
                    found[f"{name} {left} {number}"] = outcome(function, x, number)
                    found[f"{name} {number} {left}"] = outcome(function, number, x)
    return found


def main() -> None:
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        print(json.dumps(pool.starmap(outcomes, [(way, sys.argv[1]) for way in ("numpy", "triton")], chunksize=1)))


if __name__ == "__main__":
    main()
