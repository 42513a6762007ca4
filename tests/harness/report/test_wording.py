"""The text of failures with one cause: that of the one that tells most."""

from packproof.harness.report.events import Cell, Failure, Verdict
from packproof.harness.report.wording.results import failure_texts

CAUSE = "y has shape (1, 3), expected (2, 3) (s d)"


def failing(name: str, lengths: tuple[int, ...], note: str = "") -> Verdict:
    lines = ("fp32, d=3, seed 0", CAUSE, *([note] if note else []))
    failure = Failure(lengths, "", lines, 1, 3, fault="malformed", note=note)
    return Verdict(Cell("last", "wrong.py:last", name, "float32", "cpu"), "eager", "failed", 1, 0.1, failure=failure)


def test_a_group_shows_the_layout_of_its_strongest_property_that_fails_as_it_is() -> None:
    verdicts = [
        failing("determinism", (1,), "with other boundaries"),
        failing("memory", (1, 1)),
        failing("reference", (1, 2)),
        failing("reference", (1, 1)),
        failing("packing", (2,)),
    ]
    for order in (verdicts, verdicts[::-1]):
        [text] = failure_texts(order)
        assert "FAILED  reference" in text
        assert "lengths [1, 1]" in text
        assert "with other boundaries" not in text
        assert "the same in 5 cells" in text


def test_a_group_of_changed_packs_says_how_they_were_changed() -> None:
    [text] = failure_texts([failing("determinism", (1,), "with other boundaries"), failing("strides", (2,), "sliced")])
    assert "lengths [1]" in text
    assert "with other boundaries" in text
