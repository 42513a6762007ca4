"""Rows of padding: they reach no document and no gradient, and what leaks, or is NaN, through them is detected."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from packproof.harness.report.events import RunFinished, Verdict
from packproof.models.check import run_module_check
from packproof.models.request import module_request
from tests.tools.models.models import WIDTH, Attention, Counted, Hybrid, same


def verdict(module: nn.Module, convention: str, **options: object) -> Verdict:
    """Of this property alone."""
    request = module_request(module, convention=convention, profile="quick", records=False, **options)  # type: ignore[arg-type]
    *_, end = run_module_check(replace(request, laws=("padding",)))
    assert isinstance(end, RunFinished)
    [verdict] = end.verdicts
    return verdict


def all_see_padding(document: Tensor) -> Tensor:
    return same(document) | (document == -1)[None, :]


def padding_sees_nothing(document: Tensor) -> Tensor:
    return same(document) & (document != -1)[:, None]


def padding_sees_itself(document: Tensor) -> Tensor:
    return padding_sees_nothing(document) | torch.eye(len(document), dtype=torch.bool)


class Hidden(Counted):
    """Rows of padding are set to zero past the last layer, so that only backward has their NaN."""

    def forward(self, input_ids: Tensor, seq_idx: Tensor) -> Tensor:
        out = super().forward(input_ids, seq_idx)
        return torch.where((seq_idx == -1)[..., None], 0.0, out)


@pytest.mark.parametrize("sees", [same, padding_sees_itself])
def test_padding_that_stays_apart_passes(sees: Callable[[Tensor], Tensor]) -> None:
    found = verdict(Counted(sees=sees), "seq_idx")
    assert (found.cell.property, found.status, found.judged) == ("padding", "passed", 3)


def test_padding_that_documents_see() -> None:
    found = verdict(Counted(sees=all_see_padding), "seq_idx")
    assert found.failure is not None
    assert found.failure.lengths == (1,)
    assert found.failure.lines[0] == "padding of 1, 0 rows before each document and after the last"
    assert found.failure.lines[1].startswith("padding reaches document 0: outputs of up to")
    assert found.failure.lines[2] == "first module that leaks: layers.1.mixer (MaskedAttention)"


def test_padding_that_is_nan() -> None:
    found = verdict(Counted(sees=padding_sees_nothing), "seq_idx")
    assert found.failure is not None
    assert found.failure.lines[1] == "the output of padding is NaN, where no input is"


def test_padding_whose_gradient_is_nan() -> None:
    found = verdict(Hidden(sees=padding_sees_nothing), "seq_idx")
    assert found.failure is not None
    assert found.failure.lengths == (1,)
    assert found.failure.lines[1].endswith("and their gradient at its rows is up to inf")


class Normed(Attention):
    """By cu_seqlens; then divides by the size of all rows, documents' or none's."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:  # type: ignore[override]
        size = torch.stack([d.square().mean() for d in x[0, : cu_seqlens[-1]].split(cu_seqlens.diff().tolist())])
        size = size.repeat_interleave(cu_seqlens.diff())
        rest = x[0, cu_seqlens[-1] :].square().sum()
        return (
            super().forward(x[0], cu_seqlens)
            / (nn.functional.pad(size, (0, x.shape[1] - len(size))) + rest + 1)[:, None]
        )


def test_slack_past_the_last_document() -> None:
    found = verdict(Normed(), "cu_seqlens", inputs=WIDTH)
    assert found.failure is not None
    assert found.failure.lengths == (1,)
    assert found.failure.lines[0] == "padding of 0, 1 rows before each document and after the last"


class Engine(nn.Module):
    """Adds the mean of each sequence, which it keeps in a table by state_indices: -1 is the row of the last one."""

    def __init__(self, spare: int) -> None:
        super().__init__()
        self.out, self._spare = nn.Linear(WIDTH, WIDTH), spare

    def forward(self, x: Tensor, query_start_loc: Tensor, state_indices: Tensor, has_initial_state: Tensor) -> Tensor:
        table = x.new_zeros(int(state_indices.max()) + 1 + self._spare, WIDTH)
        lengths = query_start_loc.diff().tolist()
        parts = x[0, : query_start_loc[-1]].split(lengths)
        means = torch.stack([part.sum(0) / max(len(part), 1) for part in parts])
        table = table.index_put((state_indices,), means)
        seen = table[state_indices].repeat_interleave(query_start_loc.diff(), 0)
        return self.out(x[0] + nn.functional.pad(seen, (0, 0, 0, x.shape[1] - len(seen))))


def test_a_state_that_padding_overwrites() -> None:
    assert verdict(Engine(spare=1), "engine", inputs=WIDTH).status == "passed"
    found = verdict(Engine(spare=0), "engine", inputs=WIDTH)
    assert found.failure is not None
    assert found.failure.lengths == (1,)
    assert "document 0: off by" in found.failure.lines[1]


def test_a_module_that_takes_no_padding_is_not_blamed() -> None:
    class Whole(Attention):
        def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:  # type: ignore[override]
            if cu_seqlens[-1] != x.shape[1]:
                raise ValueError("cu_seqlens ends before the last row")
            return super().forward(x[0], cu_seqlens)

    found = verdict(Whole(), "cu_seqlens", inputs=WIDTH)
    assert found.status == "skipped"
    assert found.reason == "the module refused padding: ValueError: cu_seqlens ends before the last row"


@pytest.mark.parametrize("name", ["segment_ids", "document_ids"])
def test_padding_has_an_id_of_its_own(name: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Counted()

        def forward(self, input_ids: Tensor, **ids: Tensor) -> Tensor:
            [document] = ids.values()
            return self.model(input_ids, document - int(name == "segment_ids"))

    assert verdict(Named(), name).status == "passed"


def test_conventions_without_padding_have_no_such_property() -> None:
    request = module_request(Hybrid(), convention="seq_lens")
    [setting] = request.settings()
    assert [cell.property for cell in request.cells(setting)] == ["isolation", "packing"]
