"""A case is data: it survives JSON, prints on one line, and makes the same tensors everywhere."""

import json

import pytest
import torch

from packproof.properties.case import Case
from packproof.properties.cases import Space, golden_cases, random_cases, with_state
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.properties.sample import draw
from packproof.refs.errors import UsageError


@pytest.mark.parametrize("op", OPS)
def test_round_trip_through_json(op: str) -> None:
    space = Space(OPS[op], "bfloat16", Promises())
    for case in [*golden_cases(space), *random_cases(space, 20, 0)]:
        again = Case.from_json(json.loads(json.dumps(case.to_json())))
        assert again == case
        assert "\n" not in str(case)
        a, b = draw(OPS[op], case), draw(OPS[op], again)
        assert all(torch.equal(x, b.inputs[n]) for n, x in a.inputs.items())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected an object"),
        ({"dtype": "float32", "lengths": [1, -1]}, "lengths is [1, -1]"),
        ({"dtype": "float32", "lengths": [1], "sizes": 3}, "lists of pairs"),
        ({"dtype": "float32", "lengths": [1], "regime": "wild"}, "regime is 'wild'"),
        ({"dtype": "float32", "lengths": [1], "seed": "x"}, "seed is 'x'"),
        ({"dtype": "float32", "lengths": [1], "colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_damaged_cases_are_refused(data: object, message: str) -> None:
    with pytest.raises(UsageError, match="case: ") as caught:
        Case.from_json(data)
    assert message in str(caught.value)


@pytest.mark.parametrize("absent", ["initial_states", "return_final_states"])
def test_a_kernel_without_one_end_of_the_state_has_no_case_to_carry(absent: str) -> None:
    op = OPS["causal_conv1d"]
    names = frozenset({*op.inputs, *op.options})
    whole = Space(op, "float32", Promises(), names)
    part = Space(op, "float32", Promises(), names - {absent})
    assert with_state(whole, list(golden_cases(whole)))
    assert with_state(part, list(golden_cases(part))) == []


@pytest.mark.parametrize("name", OPS)
def test_sizes_of_models_are_drawn_on_a_gpu_only(name: str) -> None:
    op = OPS[name]
    large = {tuple(size.items()) for size in op.model_sizes}
    for on_gpu in (False, True):
        space = Space(op, "float32", Promises("sequence", 64, segment=1024), on_gpu=on_gpu)
        golden, drawn = (
            {c.sizes for c in cases} & large for cases in (golden_cases(space), random_cases(space, 30, 0))
        )
        assert golden == (large if on_gpu else set())
        assert bool(drawn) == bool(golden)
