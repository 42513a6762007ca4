"""Who computed, in one line."""

from packproof.base.provenance.computed import Computed, computed_text, observed

LAUNCH = Computed("triton", "m._fwd", "forward", is_own=True)
NOTHING = (
    Computed("nothing", "that packproof sees", "forward"),
    Computed("nothing", "that packproof sees", "backward"),
)


def test_kinds_and_passes_are_named() -> None:
    product = Computed("torch", "aten::mm", "backward", line="m.py:3")
    assert computed_text([LAUNCH, product]) == "triton m._fwd (forward), torch aten::mm (backward)"
    assert computed_text([]) == ""


def test_a_name_is_there_once_for_all_its_lines_and_passes() -> None:
    forward = [Computed("torch", "aten::mul", "forward", line=f"m.py:{n}") for n in (1, 2)]
    assert (
        computed_text([*forward, Computed("torch", "aten::mul", "backward")])
        == "torch aten::mul (forward and backward)"
    )


def test_many_names_are_shortened() -> None:
    names = [Computed("torch", f"aten::{name}", "forward") for name in "abcdef"]
    assert computed_text(names) == "torch aten::a, aten::b, aten::c and 3 more (forward)"
    assert computed_text(names[:4]) == "torch aten::a, aten::b, aten::c, aten::d (forward)"


def test_a_pass_in_which_one_call_shows_something_is_not_empty() -> None:
    assert observed([*NOTHING, LAUNCH, LAUNCH]) == (NOTHING[1], LAUNCH)
    assert computed_text([*NOTHING, LAUNCH]) == "nothing that packproof sees (backward), triton m._fwd (forward)"
