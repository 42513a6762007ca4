"""`packproof packs check` and `packproof.check_packs`: each planted fault is detected by its law, correct ones pass."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

import packproof
from packproof.cli.main import run
from packproof.harness.report.events import RunFinished, Verdict
from packproof.packers import packer_request, run_packer_check
from tests.sweeps import sweep
from tests.tools.packers import faulty_packers

FAULTS = {
    "losing_the_last": ("complete", [1], "document 0, of 1 token, is in no pack"),
    "repeating": ("complete", None, "are in packs 0 and 1"),
    "overfull": ("capacity", None, "tokens, of documents"),
    "truncating": ("complete", None, "are in no pack"),
    "backwards": ("order", [2], "tokens 0 to 1 of document 0 come in pack 0, after tokens 1 to 2"),
    "sorting_its_argument": ("repeated", [2, 1], "it changed its arguments"),
    "at_random": ("repeated", None, "the same call gave something else"),
    "only_powers_of_two": ("fill", None, "first fit makes"),
    "counted_by_length": ("refusal", [5, 21, 1], "it crashed at a document of 21 tokens, 10 fit: IndexError"),
    "unmasked": ("crossing", [1, 1], "labels is token 0 of document 1 in row 1; expected -100"),
    "running_positions": ("boundaries", [1, 1], "position_ids is 1 in row 1, where a document begins; expected 0"),
    "without_boundaries": ("boundaries", [1, 1], "nothing says where documents begin"),
    "offsets_without_the_last": ("boundaries", [1], "cu_seqlens is [0]; expected [0, 1]"),
    "numbers_of_full_rows": ("boundaries", [1], "seq_idx is 0 in rows 0 and 1, where padding begins"),
    "one_token_positions": ("boundaries", [1, 1], "cu_seqlens is [0, 2]; expected [0, 1, 2]"),
    "fixed_number_of_slots": ("boundaries", [1], "cu_seqlens_q_padded has 1024 offsets, cu_seqlens_q 2: kernels read"),
    "slots_without_room": ("boundaries", [1], "cu_seqlens_q_padded has 0 rows for sequence 0, which has 1 token"),
    "shifted_across": ("crossing", [1], "shift_labels is token 0 of document 0 in row 0; expected -100"),
    "short_longest": ("boundaries", [1, 2], "max_seqlen is 1; expected 2, the longest document"),
    "zeros_in_padding": ("padding", [1], "position_ids is 0 in rows 1 and 2, which are padding"),
    "unpadded_weights": ("rows", [3], "weights has 3 rows, as many as there are tokens; input_ids has 6"),
    "mask_of_ones": ("mask", [1, 1], "attention_mask is 1 in 2 rows, beside position_ids that begin again"),
    "numbered_mask_without_padding": ("mask", [1, 1], "attention_mask numbers the documents, and has no 0"),
    "miscounted_mask": ("boundaries", [1, 1, 1], "attention_mask is 2 in rows 1 and 2, where a document begins"),
    "running_axis": ("boundaries", [1, 1], "position_ids, axis 2, is 1 in row 1, where a document begins; expected 0"),
    "numbers_of_zeros": ("boundaries", None, "seq_idx is -1 in row 0, a token"),
    "running_rows": ("boundaries", [1, 1], "pack 0: position_ids is 1 in row 1, where a document begins; expected 0"),
    "without_their_labels": ("labels", [4], "labels is token 1 of document 0 in row 1; expected -100"),
    "dropping": ("complete", [1], "document 0, of 1 token, is in no pack, with 2 ranks"),
    "uneven": ("ranks", [1], "2 ranks have 1, 0 packs"),
    "forgetful": ("resume", [1], "resumed after 1 of 1 pack it yields 1 more"),
    "shrinking": ("epochs", [1], "document 0, of 1 token, is in no pack, in epoch 1"),
    "for_each_worker": ("workers", [1], "tokens 0 to 1 of document 0 are in packs 0 and 1, with 2 workers"),
    "joined": ("complete", [1], "document 0, of 1 token, is in no pack"),
}
CORRECT = (
    "best_fit",
    "cutting",
    "collate",
    "padding_collate",
    "plain_lists",
    "sampler",
    "stream",
    "split_stream",
    "collated_stream",
    "counted_padding",
    "numbered_mask",
    "three_axes",
    "slots",
    "split_rows",
    "restarting_rows",
)


def verdicts(name: str, profile: str = "quick", **options: object) -> dict[str, Verdict]:
    request = packer_request(getattr(faulty_packers, name), profile=profile, **options)  # type: ignore[arg-type]
    *_, end = run_packer_check(request)
    assert isinstance(end, RunFinished)
    return {verdict.cell.property: verdict for verdict in end.verdicts}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_detected_by_its_law(name: str) -> None:
    law, lengths, text = FAULTS[name]
    [verdict] = verdicts(name, properties=[law]).values()
    assert verdict.status == "failed"
    assert verdict.failure
    assert text in "\n".join(verdict.failure.lines)
    assert lengths is None or list(verdict.failure.lengths) == lengths


@sweep("name", ["best_fit", "counted_padding", "sampler", "stream"], [*CORRECT])
def test_a_correct_one_passes(name: str) -> None:
    excess = 100.0 if name == "cutting" else 0.1
    takes_long = name in ("padding_collate", "slots") or "stream" in name or "rows" in name
    by_law = verdicts(name, excess=excess, capacity=(10, 7) if takes_long else None)
    assert {verdict.status for verdict in by_law.values()} <= {"passed", "skipped"}


def test_a_law_that_does_not_apply_fails_nothing() -> None:
    statuses = [v.status for v in packproof.check_packs(faulty_packers.split_stream, capacity=7, profile="quick")]
    assert statuses.count("skipped") == 7  # workers, and the laws of rows: its packs are documents
    assert set(statuses) == {"passed", "skipped"}


@pytest.mark.parametrize(
    ("name", "law", "text"),
    [
        ("cut_at_separators", "boundaries", "cu_seqlens is [0, 2, 3]; expected [0, 3]"),
        pytest.param(
            "unlabelled_separators",
            "labels",
            "labels is -100 in row 1; expected token 1 of document 0",
            marks=pytest.mark.proof,
        ),
    ],
)
def test_documents_hold_separators_inside(name: str, law: str, text: str) -> None:
    assert verdicts(name, properties=[law])[law].status == "passed"
    failure = verdicts(name, properties=[law], separators=[2])[law].failure
    assert failure
    assert failure.lengths == (3,)
    assert text in failure.lines[1]
    assert {v.status for v in verdicts("collate", separators=[0, 2], capacity=7).values()} == {"passed"}
    with pytest.raises(packproof.UsageError, match="a stream has none"):
        verdicts("stream", separators=[2])


def test_a_failure_at_unusual_documents_names_them() -> None:
    def labelling_an_empty_one(documents: list[dict[str, list[int]]]) -> dict[str, list[int]]:
        return faulty_packers.plain_lists(documents) | {
            "labels": [label for d in documents for label in [-100, *d["input_ids"][1:]]]
        }

    with pytest.raises(packproof.CheckFailed, match=r"complete \(empty document\)"):
        packproof.check_packs(labelling_an_empty_one, profile="quick")


def test_a_packer_that_keeps_the_order_is_measured_by_it() -> None:
    verdict = verdicts("in_order", properties=["fill"])["fill"]
    assert verdict.failure
    [hint] = [line for line in verdict.failure.lines if "--keeps-order" in line]
    assert hint == "a packer that keeps the order of documents is checked with --keeps-order"
    assert {verdict.status for verdict in verdicts("in_order", keeps_order=True, capacity=(10, 7)).values()} == {
        "passed"
    }
    assert verdicts("best_fit", keeps_order=True, properties=["order"])["order"].status == "failed"


def test_a_refusal_of_ordinary_documents_is_inconclusive_and_of_others_is_named() -> None:
    def only_short(lengths: list[int], capacity: int) -> list[list[int]]:
        if any(n > 5 for n in lengths):
            raise ValueError("too long")
        return faulty_packers.best_fit(lengths, capacity)

    with pytest.raises(packproof.CheckFailed, match=r"was not judged: refused lengths \[.*ValueError: too long"):
        packproof.check_packs(only_short, profile="quick", properties=["complete"])
    [passed] = packproof.check_packs(faulty_packers.best_fit, profile="quick", properties=["complete"])
    assert "refused lengths [11], capacity 10: LayoutError" in passed.reason


def test_a_crash_at_ordinary_documents_is_no_refusal() -> None:
    def forgets_its_import(lengths: list[int], capacity: int) -> list[list[int]]:
        return missing_name(lengths, capacity)  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(packproof.CheckFailed, match="it crashed: NameError: name 'missing_name' is not defined"):
        packproof.check_packs(forgets_its_import, profile="quick", properties=["complete"])


def test_a_failed_operation_is_no_refusal() -> None:
    def in_a_tensor_of_rows(documents: list[dict[str, list[int]]]) -> object:
        return {"input_ids": torch.tensor([document["input_ids"] for document in documents]).view(1, -1)}

    with pytest.raises(packproof.CheckFailed, match="it crashed: ValueError: expected sequence of length"):
        packproof.check_packs(in_a_tensor_of_rows, profile="quick", properties=["complete"])


def test_the_command_prints_the_smallest_documents_and_the_line_that_runs_them_again(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text("def pack(lengths, capacity):\n    return [[j] for j in range(len(lengths) - 1)]\n")
    assert run(["packs", "check", "mine.py:pack", "--profile", "quick", "--capacity", "10", "--json", "run.json"]) == 1
    out = capsys.readouterr().out
    line = "packproof packs check mine.py:pack --kind packer --lengths '1' --capacity 10"
    assert line in out
    assert "document 0, of 1 token, is in no pack" in out
    assert json.loads(Path("run.json").read_text())["results"][0]["status"] == "failed"
    assert run(line.replace("'", "").split()[1:]) == 1
    assert "6 cells" in capsys.readouterr().out


def test_one_that_hangs_is_ended(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "import time\n"
        "def pack(lengths, capacity):\n    while len(lengths) > 1: time.sleep(1)\n    return [[0]] * len(lengths)\n"
    )
    assert run(["packs", "check", "mine.py:pack", "--timeout", "1", "--property", "complete"]) == 1
    assert "lengths [1, 1]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["faulty_packers.py:nothing_here"], "nothing_here"),
        (["faulty_packers.py:best_fit", "--capacity", "0"], "--capacity: '0', expected whole numbers of at least 1"),
        (["faulty_packers.py:best_fit", "--lengths", "3,x"], "--lengths: '3, x', expected whole numbers of at least 0"),
        (["faulty_packers.py:best_fit", "--kind", "paker"], "did you mean packer?"),
        (["faulty_packers.py:best_fit", "--profile", "slow"], "profile"),
        (["faulty_packers.py:two", "--capacity", "4"], "name its kind with --kind"),
        (["faulty_packers.py:FIVE"], "expected a function"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line(
    arguments: list[str], message: str, working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(faulty_packers.__file__).read_text() + "\n\ndef two(a, b):\n    return a\n\n\nFIVE = 5\n"
    Path("faulty_packers.py").write_text(source)
    assert run(["packs", "check", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(("rows", "status"), [(8, "passed"), (2, "failed")])
def test_batches_of_one_shape_are_a_promise(rows: int, status: str) -> None:
    def collate(documents: list[dict[str, Any]]) -> dict[str, Any]:
        """Offsets are filled up to as many entries as the pack has rows, and some more or too few."""
        offsets = [0, *accumulate(len(document["input_ids"]) for document in documents)]
        tokens = [token for document in documents for token in document["input_ids"]]
        if len(tokens) > 7:
            raise ValueError("7 rows at most")
        filled = offsets + [offsets[-1]] * (rows - len(offsets))
        return {"input_ids": tokens + [0] * (7 - len(tokens)), "cu_seqlens": filled}

    request = packer_request(collate, capacity=7, profile="quick", fixed_shapes=True, properties=["shapes"])
    *_, end = run_packer_check(request)
    assert isinstance(end, RunFinished)
    assert [verdict.status for verdict in end.verdicts] == [status]
