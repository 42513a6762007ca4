"""What a kernel promises must make sense, and where it hands its state over decides which layouts are drawn."""

from typing import Any

import pytest

from packproof.base.errors import UsageError
from packproof.properties.cases.layouts import golden_layouts, golden_segment_layouts
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import parse_declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import SELECTIVE_SCAN


@pytest.mark.parametrize(
    ("promised", "message"),
    [
        ({"chunk": 0}, "chunk is 0, expected a number of tokens"),
        ({"chunk": "64"}, "chunk is '64', expected a number of tokens"),
        ({"chunk": 64, "segment": -64}, "segment is -64, expected a number of tokens"),
        ({"chunk": 64, "segment": 100}, "segment is 100 but chunk is 64; a segment is a whole number of chunks"),
        ({"chunk": 64, "segment": 32}, "segment is 32 but chunk is 64"),
        ({"segment": 32}, "segment is 32 but chunk is None"),
    ],
)
def test_tokens_that_make_no_sense_are_refused(promised: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match="promises: ") as caught:
        parse_declaration({"declared": {"promises": promised}}, "a kernel")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("promises", "tokens"), [(Promises(), 1), (Promises(chunk=16), 16), (Promises(chunk=16, segment=48), 48)]
)
def test_the_state_is_handed_over_after_a_segment_else_a_chunk(promises: Promises, tokens: int) -> None:
    assert promises.handover == tokens


@pytest.mark.parametrize(("chunk", "segment"), [(16, 16), (16, 32), (16, 80), (64, 1024)])
def test_golden_layouts_cross_the_segments(chunk: int, segment: int) -> None:
    longest = [max(lengths) for lengths in (*golden_layouts(chunk), *golden_segment_layouts(segment, chunk))]
    assert max(longest) > segment
    assert bool(golden_segment_layouts(segment, chunk)) == (segment > chunk)


def test_long_cases_are_few_and_bounded() -> None:
    space = Space(SELECTIVE_SCAN, "float32", Promises("sequence", 64, segment=1024))
    long = [c for c in golden_cases(space) if max(c.lengths) > space.max_tokens and c.regime == "long decay"]
    assert [c.lengths for c in long] == [(1024, 1, 1025), (3, 2113)]
    drawn = random_cases(space, 200, seed=0)
    crossing = [c for c in drawn if max(c.lengths) > space.max_tokens]
    assert 4 <= len(crossing) <= 30
    assert max(c.n_tokens for c in drawn) <= 2 * 1024 + 64 + 4
