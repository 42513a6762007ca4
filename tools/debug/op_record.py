"""What is known of an op, as data: its tensors, options, layouts and laws, and the derived error budget of each result.

All of it is read from the op's declaration, its reference and the catalogue of properties.
"""

import inspect
import statistics
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.peers import PEERS
from packproof.base.axes import KEYS, SLOTS, is_in_pool, parse, role
from packproof.base.names import SHORT_DTYPES
from packproof.harness.check.targets import BUILTIN_KERNELS
from packproof.harness.process.naming import address
from packproof.properties.bounds import oracle_answer
from packproof.properties.calling import TensorKey
from packproof.properties.cases import Sample, Space, draw, dtype_of, golden_case, golden_cases
from packproof.properties.contracts import Contract
from packproof.properties.declarations import DEFAULT_DTYPES
from packproof.properties.laws import PROPERTIES
from packproof.properties.ops import Op

_AXES = {"t": "tokens of all sequences", KEYS: "keys of all sequences", "s": "sequences", SLOTS: "slots of a pool"}
_BUDGET_LENGTHS = (5, 17, 0, 10)
BUDGET = "|out - r| <= u_out |r| + eta_out + K_op u_op B_op + K_acc u_acc (B + B_E), r in float64, element by element"


def op_record(op: Op) -> dict[str, Any]:
    """The record of an op, made of what JSON has."""
    space = Space(op, "float32", Contract.for_op(op).promises, on_gpu=True)
    reasons = {name: law.skip_reason(space) for name, law in PROPERTIES.items()}
    return {
        "op": op.name,
        "reference": address(op.reference),
        "documentation": _documentation(op),
        "source": (inspect.getdoc(inspect.getmodule(op.reference)) or "").partition("\n")[0],
        "axes": {name: _AXES.get(name, _sizes_text(op, name)) for name in _axis_names(op)},
        "conditions": list(op.where),
        "inputs": {name: _tensor(op, name, spec) for name, spec in op.inputs.items()},
        "outputs": {name: _output(op, name, spec) for name, spec in op.outputs.items()},
        "offsets": _offsets(op),
        "options": _options(op),
        "dtypes": [SHORT_DTYPES[dtype] for dtype in DEFAULT_DTYPES],
        "layouts": list(dict.fromkeys(case.lengths for case in golden_cases(space))),
        "properties": {name: PROPERTIES[name].law for name, reason in reasons.items() if not reason},
        "without": {name: reason for name, reason in reasons.items() if reason},
        "budget": {"formula": BUDGET, "lengths": list(_BUDGET_LENGTHS), "ulp": _budgets(op)},
        "kernels": {name: kernel.target for name, kernel in BUILTIN_KERNELS.items() if kernel.op == op.name},
        "peers": [peer.name for peer in PEERS.values() if peer.op == op.name],
    }


def _documentation(op: Op) -> str:
    """The docstring of the reference, without its example."""
    return (inspect.getdoc(op.reference) or "").partition("\n>>>")[0].strip()


def _axis_names(op: Op) -> list[str]:
    specs = [parse(spec) for spec in (*op.inputs.values(), *op.outputs.values())]
    return list(dict.fromkeys(axis for spec in specs for axes in spec.alternatives for axis in axes))


def _sizes_text(op: Op, axis: str) -> str:
    drawn = dict.fromkeys(str(sizes[axis]) for sizes in op.sizes if axis in sizes)
    return f"tried at {', '.join(drawn)}" if drawn else "follows from the others"


def _tensor(op: Op, name: str, spec: str) -> dict[str, Any]:
    parsed = parse(spec)
    axes = parsed.alternatives[0]
    return {
        "shapes": [list(alternative) for alternative in parsed.alternatives],
        "role": "pool" if is_in_pool(axes) else role(axes),
        "optional": parsed.optional,
        "dtype": "integers" if name in op.integers else "fp32" if name in op.fixed else "tokens",
        "values": op.draws.get(name, "normal"),
        "gradient": name not in op.constants,
        **({"neutral": op.neutral[name]} if name in op.neutral else {}),
    }


def _output(op: Op, name: str, spec: str) -> dict[str, Any]:
    parsed = parse(spec)
    requests = {**op.on_request, **({op.carry[1]: op.carry[2]} if op.carry else {})}
    return {
        "shapes": [list(alternative) for alternative in parsed.alternatives],
        "role": "pool" if is_in_pool(parsed.alternatives[0]) else role(parsed.alternatives[0]),
        "dtype": "fp32" if name in op.fixed else "tokens",
        **({"option": requests[name]} if name in requests else {}),
        **({"reduction": op.reductions[name]} if name in op.reductions else {}),
    }


def _offsets(op: Op) -> dict[str, str]:
    text = "int32 or int64 (s + 1,): the start of each sequence, then the end of the last; rows past it are slack"
    return dict.fromkeys(("cu_seqlens", *(["cu_seqlens_k"] if op.packs_keys else [])), text)


def _options(op: Op) -> dict[str, Any]:
    parameters = inspect.signature(op.reference).parameters
    defaults = {name: parameters[name].default for name in op.options if name in parameters}
    return {
        name: {"values": list(values), "default": None if (d := defaults.get(name)) is inspect.Parameter.empty else d}
        for name, values in op.options.items()
    }


def _budgets(op: Op) -> dict[str, dict[str, float]]:
    """By dtype and result, the median budget of elements other than zero, each in units in its own last place."""
    budgets, promises = {}, Contract.for_op(op).promises
    for dtype in DEFAULT_DTYPES:
        space = Space(op, dtype, promises)
        case = golden_case(space, 0, _BUDGET_LENGTHS, dict(op.sizes[0]), rich=False)
        sample = draw(op, space.fit(case) or case)
        answer = oracle_answer(sample, promises, gradients=op.differentiable)
        in_ulp = {
            str(key): _in_ulp(answer.budgets[key].total, r, _dtype_of_result(sample, key))
            for key, r in answer.values.items()
        }
        budgets[SHORT_DTYPES[dtype]] = {name: round(statistics.median(ulp), 2) for name, ulp in in_ulp.items() if ulp}
    return budgets


def _dtype_of_result(sample: Sample, key: TensorKey) -> torch.dtype:
    if key.is_gradient:
        return sample.inputs[key.name].dtype
    return dtype_of(sample.op, key.name, sample.token_dtype_name)


def _in_ulp(allowed: Tensor, r: Tensor, dtype: torch.dtype) -> list[float]:
    information, nonzero = torch.finfo(dtype), r != 0
    exponent = torch.floor(torch.log2(r[nonzero].abs().clamp(min=information.tiny)))
    ulp: list[float] = (allowed[nonzero] / (information.eps * torch.exp2(exponent))).tolist()
    return ulp


def op_text(record: Mapping[str, Any]) -> dict[str, str]:
    """The record as rows of a name and a text, for a terminal."""
    tensors = {f"  {name}": _tensor_text(tensor) for name, tensor in record["inputs"].items()}
    outputs = {f"  {name}": _tensor_text(tensor) for name, tensor in record["outputs"].items()}
    options = {f"  {name}": f"{o['values']}, default {o['default']}" for name, o in record["options"].items()}
    budgets = {
        f"  {dtype}": ", ".join(f"{name} {ulp:g}" for name, ulp in results.items())
        for dtype, results in record["budget"]["ulp"].items()
    }
    return {
        "reference": f"{record['reference']}: {record['source']}",
        "axes": "; ".join(f"{name} {text}" for name, text in record["axes"].items()),
        "conditions": "; ".join(record["conditions"]),
        "inputs": "",
        **tensors,
        "outputs": "",
        **outputs,
        **record["offsets"],
        "options": "",
        **options,
        "properties": ", ".join(record["properties"]),
        "layouts": ", ".join(str(list(lengths)) for lengths in record["layouts"][:6]) + ", ...",
        "budget in ULP": f"the median of each result at lengths {record['budget']['lengths']}",
        **budgets,
        "kernels": ", ".join(record["kernels"].values()),
        "peers": ", ".join(record["peers"]),
    }


def _tensor_text(tensor: Mapping[str, Any]) -> str:
    shape = " or ".join(f"({', '.join(axes)})" for axes in tensor["shapes"])
    words = [shape, tensor["role"], f"dtype of {tensor['dtype']}" if tensor["dtype"] == "tokens" else tensor["dtype"]]
    words += ["optional"] if tensor.get("optional") else []
    words += [f"by {tensor['option']}"] if "option" in tensor else []
    words += [f"{tensor['values']} values"] if tensor.get("values", "normal") != "normal" else []
    return ", ".join(words)
