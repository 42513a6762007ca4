"""Wrong calls of packproof.check_module: refused before the module runs."""

from functools import partial
from typing import Any

import pytest
from torch import nn

import packproof
from tests.wrong_calls.refused import Wrong, assert_refused

check_module: Any = packproof.check_module
guard: Any = packproof.guard


def but(**changes: Any) -> Any:
    return partial(check_module, nn.Linear(2, 2), **{"convention": "cu_seqlens", "inputs": 2, **changes})


TABLE: dict[str, Wrong] = {
    "no module": Wrong(check_module, ("check_module: module is missing",)),
    "a class that makes none": Wrong(partial(check_module, dict, convention="cu_seqlens"), ("module: dict, expected",)),
    "no such convention": Wrong(but(convention="cu_seqlen"), ("'cu_seqlen'", "did you mean cu_seqlens?")),
    "a convention that is none": Wrong(but(convention="math:pi"), ("of type float, expected a packproof.Convention",)),
    "a convention nowhere": Wrong(but(convention="no.such:ENDS"), ("no.such cannot be imported",)),
    "no width": Wrong(but(inputs=0), ("inputs: 0, expected the width",)),
    "no such mode": Wrong(but(mode="training"), ("no mode is called 'training'", "train")),
    "no mode": Wrong(but(mode=()), ("mode: (), expected a name",)),
    "a mode that is none": Wrong(but(mode=[1]), ("mode: [1], expected a name",)),
    "no such attention": Wrong(but(attention="flash"), ("no attention is called 'flash'", "flash_attention_2")),
    "no such dtype": Wrong(but(dtypes=["fp23"]), ("no dtype is called 'fp23'",)),
    "a dtype that is no name": Wrong(but(dtypes=[32]), ("dtypes: [32], expected a name",)),
    "no such profile": Wrong(but(profile="fast"), ("profile: 'fast', expected one of quick",)),
    "a seed below zero": Wrong(but(seed=-1), ("seed: -1, expected a whole number from 0 to 2^32 - 1",)),
    "a seed of 60 digits": Wrong(but(seed=10**60), ("expected a whole number from 0 to 2^32 - 1",)),
    "both the matrix and a mode": Wrong(but(matrix=True, mode="train"), ("matrix: it has every mode",)),
    "both the matrix and torch.compile": Wrong(but(matrix=True, compiled=True), ("matrix: it has every mode",)),
    "a guard of nothing": Wrong(guard, ("guard: model is missing",)),
    "a guard of None": Wrong(partial(guard, None), ("guard: model is None, expected the nn.Module",)),
    "a guard of a class": Wrong(partial(guard, nn.Linear), ("expected the nn.Module that is trained",)),
    "a guard with documents": Wrong(partial(guard, nn.Linear(2, 2), [0, 1]), ("guard: documents is [0, 1], expected",)),
    "a guard with a name": Wrong(partial(guard, nn.Linear(2, 2), docs=1), ("guard: docs is no argument",)),
    "a name that it lacks": Wrong(but(dtype="fp32"), ("dtype is no argument; did you mean dtypes?",)),
}


@pytest.mark.parametrize("wrong", TABLE.values(), ids=TABLE.keys())
def test_it_is_refused(wrong: Wrong) -> None:
    assert_refused(wrong)
