"""A case is data: it survives JSON, prints on one line, and makes the same tensors everywhere."""

import json
from typing import Any

import pytest
import torch

from packproof.base.errors import UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.bounds.oracle import vjp
from packproof.properties.calling.call import Call, Result
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.call_contract import DETERMINISM
from packproof.properties.laws.second_derivative import second_derivative
from packproof.properties.laws.state_passing import CARRY
from packproof.properties.ops.catalogue import OPS


@pytest.mark.parametrize("op", OPS)
def test_round_trip_through_json(op: str) -> None:
    space = Space(OPS[op], "bfloat16", Promises())
    for case in [*golden_cases(space), *random_cases(space, 20, 0)]:
        again = Case.from_json(json.loads(json.dumps(case.to_json())))
        assert again == case
        assert "\n" not in str(case)
        a, b = draw(OPS[op], case), draw(OPS[op], again)
        assert all(torch.equal(x, b.inputs[n]) for n, x in a.inputs.items())


def test_every_case_of_the_largest_seed_is_read_from_its_replay_file() -> None:
    """A case of a run has a seed that is made from the run's."""
    for case in golden_cases(Space(OPS["causal_conv1d"], "float32", Promises()), 2**32 - 1):
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


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


def test_no_source_is_read_for_constants_to_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis would parse all modules that are loaded, in each process that draws."""
    providers = pytest.importorskip("hypothesis.internal.conjecture.providers")
    read: list[object] = []

    def constants(module: object) -> Any:
        read.append(module)
        return providers.Constants()

    monkeypatch.setattr(providers, "_sys_modules_len", None, raising=False)
    monkeypatch.setattr(providers, "_seen_modules", set(), raising=False)
    monkeypatch.setattr(providers, "constants_from_module", constants, raising=False)
    assert len(random_cases(Space(OPS["rope"], "float32", Promises()), 20, 0)) == 20
    assert read == []


@pytest.mark.parametrize("absent", ["initial_states", "return_final_states"])
def test_a_kernel_without_one_end_of_the_state_has_no_case_to_carry(absent: str) -> None:
    op = OPS["causal_conv1d"]
    names = frozenset({*op.inputs, *op.options})
    whole = Space(op, "float32", Promises(), names)
    part = Space(op, "float32", Promises(), names - {absent})
    assert CARRY.suited(whole, list(golden_cases(whole)))
    assert CARRY.suited(part, list(golden_cases(part))) == []


@pytest.mark.parametrize("name", list(OPS)[::3])
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


def samples(name: str) -> list[Sample]:
    return [draw(OPS[name], case) for case in golden_cases(Space(OPS[name], "float32", Promises()))]


@pytest.mark.parametrize("name", ["rope", "rope_qk"])
def test_tables_are_as_long_as_the_longest_sequence_or_as_the_pack(name: str) -> None:
    packs = [(s.sizes["m"], s) for s in samples(name) if len(s.lengths) > 1]
    assert any(m == max(s.lengths) for m, s in packs)
    assert any(m == s.shape("cos")[0] == s.offsets[-1] + s.slack > max(s.lengths) for m, s in packs)


@pytest.mark.parametrize(("name", "step"), [("selective_scan", "delta"), ("ssd", "dt")])
def test_some_steps_are_so_large_that_softplus_is_their_own_value(name: str, step: str) -> None:
    largest = [float(s.inputs[step].max()) for s in samples(name) if s.options[f"{step}_softplus"]]
    assert max(largest) > 88
    assert min(largest) < 1


@pytest.mark.parametrize(("name", "step"), [("selective_scan", "delta"), ("ssd", "dt")])
def test_a_bias_and_softplus_are_judged_together_and_each_alone(name: str, step: str) -> None:
    met = {(f"{step}_bias" in s.inputs, s.options[f"{step}_softplus"]) for s in samples(name)}
    assert len(met) == 4, met


def test_heads_are_shared_by_more_than_two() -> None:
    """Two summands have one order only: a sum in any order needs three."""
    assert any(s.sizes["hq"] // s.sizes["hk"] > 2 for s in samples("attention"))


@pytest.mark.parametrize("mixed", [True, False])
def test_forms_of_b_and_c_differ_in_a_call_only_where_the_kernel_mixes_them(mixed: bool) -> None:
    op = OPS["selective_scan"]
    space = Space(op, "float32", Promises(), mixed=mixed)
    samples = [draw(op, case) for case in [*golden_cases(space), *random_cases(space, 40, 0)]]
    assert {s.inputs[n].dim() for s in samples for n in "BC"} == {2, 3}
    assert any(s.inputs["B"].dim() != s.inputs["C"].dim() for s in samples) == mixed


def test_a_single_sequence_is_repeated_after_a_pack_of_as_many_rows() -> None:
    case = next(c for c in golden_cases(Space(OPS["rope"], "float32", Promises())) if len(c.lengths) == 1)
    seen: list[tuple[int, ...]] = []

    class Watched(InProcess):
        def run(self, call: Call) -> Result:
            seen.append(tuple(call.cu_seqlens.diff().tolist()))
            return super().run(call)

    assert not list(DETERMINISM.check(KernelUnderTest(OPS["rope"], Watched(OPS["rope"].reference), Promises()), case))
    assert any(len(lengths) == 2 and sum(lengths) == case.n_tokens + case.slack for lengths in seen)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sample_in_float64_leaves_its_own_tensors_alone(dtype: str) -> None:
    sample = draw(OPS["ssd"], Case((2, 3), dtype, tuple(OPS["ssd"].sizes[0].items())))
    digest = sample.digest
    exact = sample.in_float64()
    assert {name for name, x in exact.items() if x.requires_grad} == set(sample.wrt)
    assert not any(x.requires_grad for x in (*sample.inputs.values(), *sample.cotangents.values()))
    vjp(OPS["ssd"].reference, sample, gradients=True)
    second_derivative(OPS["ssd"].reference, sample)
    assert not any(x.requires_grad for x in (*sample.inputs.values(), *sample.cotangents.values()))
    assert sample.digest == digest


def test_the_number_of_a_configuration_is_kept_by_every_sample_of_a_case() -> None:
    op = OPS["causal_conv1d"]
    case = Case((2, 3), "float32", tuple(op.sizes[0].items()), configuration=4)
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    assert "configuration" not in case.replace(configuration=0).to_json()
    sample = draw(op, case)
    for rearranged in (
        sample,
        sample.alone(1),
        sample.select([1, 0]),
        sample.followed_by([2], 1),
        sample.with_slack(0.0),
    ):
        assert rearranged.call().configuration == 4
