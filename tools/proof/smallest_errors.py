"""How sharp the budgets are: the smallest relative errors that they detect, for each op, dtype and promise.

    python -m packproof.proof.smallest_errors FILE

One pack of each op is drawn, in plain data and with everything optional. An element that is off by a share e of itself
breaks its budget if e |r| is above it, with r the value of the reference. For one element, the table has the median of
these shares. For a gradient that all sequences share, every element is off by e: the sharpest one detects it. A tensor
that is judged by no element is named: its budget is as large as its values.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import is_shared, parse
from packproof.base.files import replace_text
from packproof.base.names import short_dtype
from packproof.harness.report.formats import markdown_table, numbers, texts
from packproof.properties.bounds import oracle_answer
from packproof.properties.calling import TensorKey
from packproof.properties.cases import Case, draw
from packproof.properties.declarations import Promises
from packproof.properties.ops import OPS, Op

_LENGTHS = (53, 0, 31, 1)
_CHUNK = 64
_DTYPES = ("float32", "bfloat16", "float16")
_COLUMNS = (
    *texts("op", "dtype", "operands", "decays"),
    *numbers("an output", "a gradient", "a shared gradient"),
    *texts("not judged"),
)

Row = Mapping[str, Any]


def rows() -> Iterator[Row]:
    """A row for each differentiable op, dtype and set of promises."""
    for op in OPS.values():
        if op.pool or not op.differentiable:
            continue
        for dtype in _DTYPES:
            for promises in promises_of(op, dtype):
                yield row(op, dtype, promises)


def promises_of(op: Op, dtype: str) -> Iterator[Promises]:
    """The promises that decide on the budgets of an op."""
    rounded = ("tf32",) if dtype == "float32" else ("operand",)
    has_sums = op.cumsum is not None or (op.roundings is not None and op.has_decays)
    for compute in ("fp32", *(rounded if op.matmul else ())):
        for cumsum in (False, True) if has_sums else (False,):
            yield Promises("sequence", _CHUNK, compute, cumsum=cumsum)


def row(op: Op, dtype: str, promises: Promises) -> Row:
    """The smallest relative errors under these promises; None where an op has no such tensor."""
    present = tuple(name for name, spec in op.inputs.items() if parse(spec).optional)
    options = tuple((name, values[-1]) for name, values in op.options.items())
    sample = draw(op, Case(_LENGTHS, dtype, tuple(op.sizes[0].items()), present=present, options=options))
    answer = oracle_answer(sample, promises, gradients=True)
    shares = {key: answer.budgets[key].total / value.abs() for key, value in answer.values.items() if bool(value.any())}

    def worst(share: Callable[[Tensor], Tensor], keys: Iterable[TensorKey]) -> tuple[float, str] | None:
        errors = [(float(share(shares[key][answer.values[key] != 0])), key.name) for key in keys]
        return max(errors, default=None)

    judged = [key for key in shares if key not in answer.vacuous]
    shared = [key for key in judged if key.is_gradient and is_shared(sample.axes[key.name])]
    return {
        "op": op.name,
        "dtype": dtype,
        "compute": promises.compute,
        "cumsum": promises.cumsum,
        "output": worst(torch.median, [key for key in judged if not key.is_gradient]),
        "gradient": worst(torch.median, [key for key in judged if key.is_gradient and key not in shared]),
        "shared": worst(torch.min, shared),
        "vacuous": [str(key) for key in answer.vacuous],
    }


def section(results: Sequence[Row]) -> Iterator[str]:
    """The section of the report, in Markdown."""
    yield from (
        "## The smallest errors that are detected",
        "",
        "Relative to the value: of one element in the middle of a tensor's elements, for the output and the gradient "
        "of tokens or states that are judged least sharply, and of all elements of a shared gradient. Plain data, 85 "
        f"tokens, everything optional, chunks of {_CHUNK} (`python -m packproof.proof.smallest_errors`).",
        "",
    )
    yield from markdown_table(_COLUMNS, map(_cells, results))
    yield ""


def _cells(result: Row) -> tuple[str, ...]:
    tensors = (
        f"{error[0]:.1e} ({error[1]})" if (error := result[kind]) else "" for kind in ("output", "gradient", "shared")
    )
    decays = "running sums" if result["cumsum"] else ""
    return result["op"], short_dtype(result["dtype"]), result["compute"], decays, *tensors, ", ".join(result["vacuous"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the smallest relative errors that budgets detect.")
    parser.add_argument("file", type=Path, help="such as .packproof/proof/errors.json")
    arguments = parser.parse_args()
    results = list(rows())
    replace_text(arguments.file, json.dumps({"version": 1, "results": results}, indent=1) + "\n")
    print(f"{arguments.file}: {len(results)} budgets")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
