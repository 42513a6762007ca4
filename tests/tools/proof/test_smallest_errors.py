"""The table of the smallest errors that budgets detect."""

import pytest

from packproof.proof.smallest_errors import promises_of, row
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS


def test_each_promise_that_decides_on_budgets_has_a_row() -> None:
    def rows(op: str, dtype: str) -> list[tuple[str | None, bool]]:
        return [(promises.compute, promises.cumsum) for promises in promises_of(OPS[op], dtype)]

    assert rows("rope", "bfloat16") == [("fp32", False)]
    assert rows("attention", "float32") == [("fp32", False), ("tf32", False)]
    assert rows("delta_rule", "bfloat16") == [("fp32", False), ("operand", False)]
    assert rows("ssd", "bfloat16") == [("fp32", False), ("fp32", True), ("operand", False), ("operand", True)]
    assert rows("kda", "float32")[-1] == ("tf32", True)


@pytest.mark.parametrize("op", ["rope", "causal_conv1d"])
def test_an_element_of_bf16_is_detected_from_its_own_rounding_on(op: str) -> None:
    measured = row(OPS[op], "bfloat16", Promises("sequence", 64, "fp32"))
    assert measured["output"] == (pytest.approx(2**-8, rel=0.02), "y")
    assert measured["gradient"] == (pytest.approx(2**-8, rel=0.02), "x")
    assert (measured["shared"] is None) == (op == "rope")
    assert measured["vacuous"] == []


def test_a_gates_gradient_off_by_its_own_size_is_detected_beside_running_sums() -> None:
    measured = row(OPS["gated_delta_rule"], "bfloat16", Promises("sequence", 64, "operand", cumsum=True))
    assert measured["vacuous"] == []
    assert measured["gradient"][0] < 1
    assert measured["shared"][0] < 1
