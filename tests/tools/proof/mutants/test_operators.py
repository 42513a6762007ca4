"""Each operator makes its change in the source, and the result is still Python."""

import ast
import random

import pytest

from packproof.proof.mutants.mutant import all_mutants, mutants_of
from packproof.proof.mutants.operators import OPERATORS

KERNEL = """
@triton.jit
def kernel(x, y, n, x_stride, y_stride, B: tl.constexpr):
    '''1 + 1 of a docstring, and Σ.'''
    {}
"""


@pytest.mark.parametrize(
    ("operator", "line", "becomes"),
    [
        ("comparison", "a = i < (n)", ["a = i <= (n)"]),
        ("comparison", "a = i == n", ["a = i != n"]),
        ("arithmetic", "a = (i + 1) // n", ["a = (i + 1) % n", "a = (i - 1) // n"]),
        ("arithmetic", "a = f(-i)", ["a = f(i)"]),
        ("arithmetic", "a += i", ["a -= i"]),
        ("term", "a = (i + n) * x", ["a = (i + n)", "a = x", "a = (i) * x", "a = (n) * x"]),
        ("term", "a = i - n", ["a = i"]),
        ("term", "a = i + n + x", ["a = i + n", "a = i + x", "a = n + x"]),
        ("term", "a += i", ["pass", "a = i"]),
        ("constant", "a = i[0]", ["a = i[1]"]),
        ("constant", "a = i[2]", ["a = i[3]", "a = i[1]"]),
        ("constant", "a = i / 0.0", ["a = i / 1.0"]),
        ("iterations", "for i in range(2, n, B): a = i", [
            "for i in range(2, (n) - (B), B): a = i",
            "for i in range(2, (n) + (B), B): a = i",
            "for i in range((2) + (B), n, B): a = i",
        ]),
        ("iterations", "for i in range(n): a = i", [
            "for i in range((n) - (1)): a = i",
            "for i in range((n) + (1)): a = i",
        ]),
        ("conjunct", "a = (i < n) & (x | y)", ["a = (i < n)", "a = (x | y)", "a = (i < n) & (x)", "a = (i < n) & (y)"]),
        ("branch", "a = tl.where(i < n, x, -1).to(B)", ["a = (x).to(B)", "a = (-1).to(B)"]),
        ("branch", "a = x if B else y", ["a = (x)", "a = (y)"]),
        ("branch", "if not B: a = x", ["if B: a = x"]),
        ("mask", "a = tl.load(x, mask=i < n, other=0.0)", ["a = tl.load(x)"]),
        ("mask", "tl.store(x, y, i < n)", ["tl.store(x, y)"]),
        ("other", "a = tl.load(x, mask=i < n, other=0.0)", ["a = tl.load(x, mask=i < n)"]),
        ("precision", "a = (x + y).to(tl.float32)", ["a = (x + y)"]),
        ("precision", "a, b = i, tl.zeros((B,), tl.float32)\n    b += x\n    a += x", [
            "b += (x).to(tl.bfloat16).to(tl.float32)"
        ]),
        ("extremum", "a = tl.minimum(i, n)", ["a = tl.maximum(i, n)", "a = (i)", "a = (n)"]),
        ("lanes", "a = tl.arange(0, B)", ["a = (tl.arange(0, B) + 1)"]),
        ("stride", "a = x + i * x_stride", ["a = x + i * y_stride"]),
        ("function", "a = tl.cdiv(n, B)", ["a = (n) // (B)"]),
        ("function", "a = tl.exp2(tl.trans(x))", ["a = tl.exp(tl.trans(x))", "a = tl.exp2((x))"]),
    ],
)  # fmt: skip
def test_an_operator(operator: str, line: str, becomes: list[str]) -> None:
    found = [m for m in mutants_of("module", KERNEL.format(line)) if m.operator == operator]
    assert [m.change[1] for m in found] == becomes
    assert [m.id for m in found] == [f"module:kernel:{operator}:{k}" for k in range(len(found))]


@pytest.mark.parametrize(
    "line",
    [
        "tl.static_assert(x.dtype == 1, 'one')",
        "for i in tl.range(B, disable_licm=True): pass",
        "a = tl.load(x, eviction_policy='evict_first')",
        "a: tl.constexpr = B",
        "a = x.to(tl.int64)",
    ],
)
def test_lines_that_no_other_operator_changes(line: str) -> None:
    assert {m.operator for m in mutants_of("module", KERNEL.format(line))} <= {"iterations"}


def test_only_functions_for_triton_are_changed() -> None:
    source = KERNEL.format("pass") + "\ndef launch(n):\n    return n + 1\n"
    assert list(mutants_of("module", source)) == []


def test_ids_do_not_depend_on_lines() -> None:
    source = KERNEL.format("a = i + n")
    assert [m.id for m in mutants_of("m", source)] == [m.id for m in mutants_of("m", "\n\n" + source)]


@pytest.mark.proof
def test_mutants_of_the_kernels_are_python_and_differ() -> None:
    mutants = all_mutants()
    assert len({m.id for m in mutants}) == len(mutants)
    assert {m.operator for m in mutants} == set(OPERATORS)
    for mutant in random.Random(0).sample(mutants, 200):
        ast.parse(mutant.source)
        was, now = mutant.change
        assert was != now
