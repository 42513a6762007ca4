"""Windows and tiles: bugs that no golden layout shows but those for windows."""

import pytest

from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.invariance import REFERENCE
from packproof.properties.ops.catalogue import ATTENTION, ROPE
from tests.properties.tiled_attention import BUGS, PROMISES, planted

SPACE = Space(ATTENTION, "float32", PROMISES)


def of_windows(case: Case) -> bool:
    """Whether a golden case is there for windows: the others have a causal window and sinks, or no window."""
    options = dict(case.options)
    return not case.present and (options["causal"] or options["window_size"] != (-1, -1))


GOLDEN = list(golden_cases(SPACE))
WINDOWS = [case for case in GOLDEN if of_windows(case)]


def detecting(bug: str, cases: list[Case]) -> list[str]:
    kernel = KernelUnderTest(ATTENTION, InProcess(planted(bug)), PROMISES)
    return [str(case) for case in cases if first_violation(kernel, REFERENCE, case)]


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_tiles_shows_at_a_golden_window(bug: str) -> None:
    assert detecting(bug, WINDOWS)


def test_a_correct_kernel_passes() -> None:
    assert detecting("", WINDOWS) == []


@pytest.mark.proof
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_tiles_shows_nowhere_else(bug: str) -> None:
    assert detecting(bug, [case for case in GOLDEN if not of_windows(case)]) == []


def test_windows_have_the_size_of_the_tiles_that_a_kernel_promises() -> None:
    space = Space(ATTENTION, "float32", Promises(chunk=128))
    reaches = [dict(case.options)["window_size"] for case in golden_cases(space) if of_windows(case)]
    assert reaches == [(5, 2), (257, 126), (126, 257), *[(-1, -1)] * 4]
    drawn = {dict(case.options)["window_size"] for case in random_cases(space, 60, seed=0)}
    assert {(64, -1), (-1, 64), (257, 126)} <= drawn


def test_a_kernel_without_windows_is_given_none() -> None:
    plain = Space(ATTENTION, "float32", PROMISES, parameters=("q", "k", "v", "sinks", "cu_seqlens", "causal"))
    assert plain.window_layouts == Space(ROPE, "float32", PROMISES).window_layouts == ()


def test_a_plain_layout_is_not_tried_again_where_a_window_has_it() -> None:
    windows = [case.lengths for case in WINDOWS]
    plain = [case.lengths for case in GOLDEN if not case.present and not of_windows(case)]
    assert set(plain) & set(windows) == set()
