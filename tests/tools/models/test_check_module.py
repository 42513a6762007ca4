"""check_module: leaks planted in a hybrid are found, at the module that has them, and the correct model passes."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from packproof.base.errors import ArgumentError, UsageError
from packproof.harness.report.events import RunFinished, Verdict
from packproof.harness.report.failed import CheckFailed
from packproof.models.check import check_module, module_passed, run_module_check
from packproof.models.outcomes import outcome_of, outcomes_of
from packproof.models.request import module_request
from packproof.models.subjects.conventions import CONVENTIONS, Convention
from packproof.models.subjects.pack import Pack
from tests.sweeps import sweep
from tests.tools.models.llama import Llama, Qwen2VL
from tests.tools.models.models import (
    SSD,
    VOCABULARY,
    WIDTH,
    Attention,
    Conv,
    Counted,
    Hybrid,
    LastBatchsBoundaries,
    LeakyBackward,
    MaskedAttention,
    Positions,
    Scan,
    ScanWithLeakyBackward,
    dropped_in,
)

LAYOUTS = ((5, 7), (1, 3, 1, 20))  # those that are made for a module are many more


def verdicts(
    module: nn.Module,
    convention: str | Convention = "cu_seqlens",
    layouts: tuple[tuple[int, ...], ...] = LAYOUTS,
    laws: tuple[str, ...] = (),
    **options: object,
) -> dict[str, Verdict]:
    request = module_request(module, convention=convention, profile="quick", records=False, **options)  # type: ignore[arg-type]
    *_, end = run_module_check(replace(request, layouts=layouts, laws=laws or request.laws))
    assert isinstance(end, RunFinished)
    return {verdict.cell.property: verdict for verdict in end.verdicts}


def isolation(module: nn.Module, convention: str | Convention = "cu_seqlens", **options: Any) -> Verdict:
    """The verdict of this property alone."""
    return verdicts(module, convention, laws=("isolation",), **options)["isolation"]


@pytest.mark.parametrize(
    ("dtype", "mixers"),
    [
        ("fp32", (Scan, SSD)),
        ("bf16", (Conv, Attention)),
        pytest.param("fp32", (Conv, Scan, SSD, Attention), marks=pytest.mark.proof),
        pytest.param("fp64", (Conv, Attention), marks=pytest.mark.proof),
    ],
)
def test_a_correct_model_passes(dtype: str, mixers: Sequence[Callable[[], nn.Module]]) -> None:
    found = verdicts(Hybrid(mixers=mixers), layouts=(), dtypes=[dtype])
    assert {law: v.status for law, v in found.items()} == dict.fromkeys(("isolation", "packing", "padding"), "passed")


@sweep("number", [0, 3], range(4))
def test_boundaries_that_one_layer_does_not_get(number: int) -> None:
    found = isolation(dropped_in(number))
    assert found.status == "failed"
    assert found.failure is not None
    text = "\n".join(found.failure.lines)
    assert f"first module that leaks: layers.{number}.mixer (" in text
    assert "cu_seqlens was last seen in Hybrid" in text
    assert found.failure.lengths == (1, 1)


@sweep("number", [2], [0, 2])
def test_boundaries_that_one_of_four_equal_layers_does_not_get(number: int) -> None:
    found = isolation(dropped_in(number, [Attention] * 4))
    assert found.failure is not None
    assert found.failure.lengths == (1, 1)
    assert f"first module that leaks: layers.{number}.mixer (Attention)" in found.failure.lines


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: LeakyBackward(mixers=(Conv, Attention)), "the model itself (LeakyBackward)"),
        (lambda: Hybrid(mixers=(Conv, ScanWithLeakyBackward)), "layers.1.mixer (ScanWithLeakyBackward)"),
    ],
    ids=["in the model", "in a layer"],
)
def test_a_leak_of_the_backward_pass_alone(make: Callable[[], nn.Module], culprit: str) -> None:
    found = isolation(make())
    assert found.failure is not None
    assert found.failure.lengths == (1, 1)
    assert found.failure.lines[1] == f"first module that leaks: {culprit}"
    assert found.failure.lines[-1] == "it leaks in the backward pass alone: outputs move by no more than rounding"


def test_boundaries_of_the_first_batch_of_as_many_tokens() -> None:
    found = isolation(LastBatchsBoundaries())
    assert found.failure is not None
    assert found.failure.lengths == (1, 1)
    assert "first module that leaks: layers.0.mixer (Conv)" in found.failure.lines


def test_boundaries_of_the_batch_before() -> None:
    class Late(Hybrid):
        def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
            before = getattr(self, "before", cu_seqlens)
            self.before = cu_seqlens
            return super().forward(input_ids, before if before[-1] == cu_seqlens[-1] else cu_seqlens)

    found = isolation(Late(mixers=[Attention]))
    assert found.failure is not None
    assert found.failure.lengths == (1, 1)


@sweep("modulo", [2], [2, 3])
def test_a_seq_idx_that_counts_modulo(modulo: int) -> None:
    found = isolation(Counted(lambda document: document % modulo), "seq_idx")
    assert found.failure is not None
    assert found.failure.lengths == (1,) * (modulo + 1)
    assert "first module that leaks: layers.1.mixer (MaskedAttention)" in found.failure.lines


def test_a_seq_idx_of_one_byte() -> None:
    class OneByte(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = MaskedAttention()

        def forward(self, x: Tensor, seq_idx: Tensor) -> Tensor:
            return self.attention(x[0], seq_idx[0].to(torch.int8))

    request = module_request(OneByte(), convention="seq_idx", inputs=WIDTH, records=False)
    *_, end = run_module_check(replace(request, laws=("isolation",)))
    assert isinstance(end, RunFinished)
    assert end.verdicts[0].failure is not None
    assert end.verdicts[0].failure.lengths == (1,) * 257


def test_seq_idx_is_taken() -> None:
    assert {v.status for v in verdicts(Counted(), "seq_idx").values()} == {"passed"}


def test_positions_that_do_not_restart_are_no_leak_and_not_equal_to_alone() -> None:
    found = verdicts(Positions(restarts=False))
    assert (found["isolation"].status, found["packing"].status) == ("passed", "failed")
    assert found["packing"].failure is not None
    assert found["packing"].failure.lengths == (1, 1)
    told = r"document 1: off by .* from the document alone(.|\n)*alone: the model itself \(Positions\)"
    assert re.search(told, "\n".join(found["packing"].failure.lines))
    found = verdicts(Positions(restarts=True))
    assert (found["isolation"].status, found["packing"].status) == ("passed", "passed")


class TimesTheLengthOfTheRow(SSD):
    """As a mean over the row, where it is a sum."""

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        return super().forward(x, cu_seqlens) * len(x) ** 0.5


def test_a_layer_that_computes_another_thing_in_a_pack() -> None:
    found = verdicts(Hybrid(mixers=[Conv, TimesTheLengthOfTheRow]))
    assert (found["isolation"].status, found["packing"].status) == ("passed", "failed")
    assert found["packing"].failure is not None
    said = "what other documents hold does not reach document "
    assert found["packing"].failure.lines[1].startswith(said)
    assert found["packing"].failure.lines[2:] == (
        "first module that differs from the document alone: layers.1.mixer (TimesTheLengthOfTheRow)",
        "    it received cu_seqlens",
    )


class Layer(nn.Module):
    """Attention over tokens of a width, told by whatever `name` is called."""

    def __init__(self, **ignored: object) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None, **kwargs: object) -> Tensor:
        return self.attention(x[0], cu_seqlens)[None]


def test_what_is_accepted_and_has_no_effect_is_said() -> None:
    found = isolation(Layer(), "seq_idx", inputs=WIDTH)
    assert found.failure is not None
    assert found.failure.lines[-1] == "ignored: seq_idx: for one document the output has the same bits"


@pytest.mark.parametrize(
    ("model", "convention", "status"),
    [
        (Qwen2VL, "hf_mrope", "failed"),
        (Qwen2VL, "hf_mrope_text", "passed"),
        (Llama, "hf_position_ids", "passed"),
        (Llama, "hf_mrope_text", "inconclusive"),
    ],
)
def test_positions_of_three_axes_show_documents_only_after_those_of_the_text(
    model: type[nn.Module], convention: str, status: str
) -> None:
    assert isolation(model(), convention).status == status


def test_a_refusal_is_not_a_leak() -> None:
    found = isolation(Hybrid(), "seq_idx")
    assert found.status == "inconclusive"
    assert found.reason == "the module refused: forward takes no seq_idx"


def test_a_variable_that_was_never_set_is_no_refusal() -> None:
    class Padded(Layer):
        def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:  # type: ignore[override]
            if cu_seqlens is None:
                rows = torch.arange(x.shape[1])
            return super().forward(x, cu_seqlens)[:, rows]

    found = verdicts(Padded(), inputs=WIDTH)
    assert {v.status for v in found.values()} == {"failed"}
    assert found["isolation"].failure is not None
    assert found["isolation"].failure.lines[0].startswith("the module raised UnboundLocalError: ")
    assert outcome_of(list(found.values())).word == "refused"  # in the table of several that are named
    request = replace(module_request(Padded(), convention=None, inputs=WIDTH, records=False), layouts=LAYOUTS)
    *_, end = run_module_check(request)
    assert isinstance(end, RunFinished)
    assert not module_passed(request, end)
    assert {outcome.name: outcome.word for outcome in outcomes_of(end.verdicts)}["cu_seqlens"] == "refused"


OWN = Convention("boundaries", "the offsets of the documents", lambda pack: {"cu_seqlens": pack.offsets.int()})


class MasksByBoundaries(Layer):
    """Its mask has a row per boundary, not one per token."""

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x) if cu_seqlens is None else super().forward(x) * cu_seqlens[None, :, None]


class ChecksBoundaries(MasksByBoundaries):
    """The same mistake, and a check that says so."""

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:  # type: ignore[override]
        if cu_seqlens is not None and len(cu_seqlens) != x.shape[1]:
            raise RuntimeError(f"the size of cu_seqlens is {len(cu_seqlens)}, expected {x.shape[1]}")
        return super().forward(x, cu_seqlens)


class NeedsBoundaries(MasksByBoundaries):
    """Without boundaries it does not compute either: the inputs may be to blame."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, cu_seqlens)


class TakesNoSuchNumbers(Layer):
    """An operator that lacks a dtype: no sizes are wrong."""

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:  # type: ignore[override]
        y = super().forward(x)
        return y if cu_seqlens is None else torch.linalg.inv(y.half())


@pytest.mark.parametrize(
    ("module", "convention", "status"),
    [
        (MasksByBoundaries, OWN, "failed"),
        (MasksByBoundaries, "cu_seqlens", "inconclusive"),
        (ChecksBoundaries, OWN, "inconclusive"),
        (NeedsBoundaries, OWN, "inconclusive"),
        (TakesNoSuchNumbers, OWN, "inconclusive"),
    ],
)
def test_sizes_that_do_not_fit_inside_a_computation_are_no_refusal(
    module: type[nn.Module], convention: str | Convention, status: str
) -> None:
    """The user wrote the arguments for this module, which takes the same tokens without: its inputs are right."""
    found = verdicts(module(), convention, inputs=WIDTH)
    assert {law: v.status for law, v in found.items() if law != "padding"} == dict.fromkeys(
        ("isolation", "packing"), status
    )
    failure = found["isolation"].failure
    if status == "failed":
        assert failure is not None
        assert failure.lines[0].startswith("the module raised RuntimeError: The size of tensor a ")
        assert "without its arguments the module takes the same tokens" in failure.lines[1]


@pytest.mark.parametrize("convention", ["cu_seqlens", "cu_seqlens_flat"])
def test_ids_are_embedded_without_an_axis_of_batches(convention: str) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.attention = nn.Embedding(VOCABULARY, WIDTH), Attention()

        def forward(self, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
            return self.attention(self.embedding(ids.flatten()), cu_seqlens)

    assert {v.status for v in verdicts(Flat(), convention).values()} == {"passed"}


def test_a_module_that_mixes_nothing_gives_no_verdict() -> None:
    class Alone(nn.Linear):
        def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)

    found = isolation(Alone(WIDTH, WIDTH), inputs=WIDTH)
    assert found.status == "inconclusive"
    assert "without boundaries leaks nothing either" in found.reason


def test_a_module_that_is_random_gives_no_verdict() -> None:
    class Noisy(Layer):
        def forward(self, x: Tensor, cu_seqlens: Tensor | None = None, **kwargs: object) -> Tensor:
            return super().forward(x + torch.rand_like(x), cu_seqlens)

    found = isolation(Noisy(), inputs=WIDTH)
    assert (found.status, found.reason.partition(":")[0]) == ("inconclusive", "two equal calls differ")


def test_a_convention_of_ones_own() -> None:
    def ends(pack: Pack) -> dict[str, object]:
        return {"ends": pack.offsets[1:].tolist()}

    class Ends(Layer):
        def forward(self, x: Tensor, ends: list[int]) -> Tensor:  # type: ignore[override]
            return super().forward(x, torch.tensor([0, *ends]))

    held = check_module(Ends(), convention=Convention("ends", "the end of each", ends), inputs=WIDTH, profile="quick")
    assert [v.status for v in held] == ["passed", "passed"]
    assert {v.cell.property for v in held} == {"isolation", "packing"}


@pytest.mark.proof
def test_all_conventions_are_tried_where_none_is_named() -> None:
    held = check_module(Layer(), inputs=WIDTH, profile="quick")
    passed = {v.cell.op for v in held if v.cell.property == "isolation" and v.status == "passed"}
    assert passed == {"cu_seqlens"}
    assert {v.cell.op for v in held} == set(CONVENTIONS)


def test_all_conventions_are_one_table_where_none_holds() -> None:
    with pytest.raises(CheckFailed, match=r"no convention holds; name one to see why\nconvention") as failed:
        check_module(dropped_in(1, [Conv, Attention]), profile="quick")
    lines = str(failed.value).splitlines()
    assert len(lines) == 2 + len(CONVENTIONS)
    assert "cu_seqlens                       leaks       at layers.1.mixer" in lines


def test_the_failure_is_raised_with_the_module() -> None:
    with pytest.raises(CheckFailed, match=r"first module that leaks: layers.1.mixer \(SSD\)"):
        check_module(dropped_in(1, [Conv, SSD]), convention="cu_seqlens", profile="quick")


def test_the_module_is_left_as_it_was() -> None:
    model = Hybrid(mixers=[Conv]).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_module(model, convention="cu_seqlens", profile="quick")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"convention": "cu_seqlen"}, "did you mean cu_seqlens"),
        ({"convention": "cu_seqlens", "inputs": 0}, "inputs: 0, expected the width of a token"),
        ({"convention": "cu_seqlens", "inputs": "8"}, "inputs: '8', expected the width of a token"),
        ({"convention": "cu_seqlens", "profile": "fast"}, "profile: 'fast', expected one of quick"),
        ({"convention": "cu_seqlens"}, "inputs: Linear has no nn.Embedding"),
    ],
)
def test_wrong_calls(options: dict[str, object], words: str) -> None:
    with pytest.raises((ArgumentError, UsageError), match=words):
        check_module(nn.Linear(2, 2), **options)  # type: ignore[arg-type]
