"""Each operator makes its change in a line of CUDA C++, and mutants lie where something is computed."""

import pytest

from tests.kernels.mutants.mutant import SOURCES, all_mutants, files_of, mutants_of
from tests.kernels.mutants.operators import OPERATORS

FUNCTION = """
__device__ __forceinline__ void step(Ring ring, int n) {{
    {}
}}
"""


def changed_lines(line: str, operator: str) -> list[str]:
    mutants = mutants_of("kernel.cuh", FUNCTION.format(line))
    return [m.change[1] for m in mutants if m.operator == operator]


@pytest.mark.parametrize(
    ("operator", "line", "becomes"),
    [
        ("boundary", "x = i < (n);", ["x = i <= (n);"]),
        ("boundary", "x = f<2>(i) == n;", ["x = f<2>(i) != n;"]),
        ("boundary", "x = min(i, n);", ["x = max(i, n);"]),
        ("index", "x = y[i];", ["x = y[i + 1];"]),
        ("index", "x = y[2];", ["x = y[3];"]),
        ("index", "x = a * b + c;", ["x = a * b - c;", "x = a * b;", "x = c;"]),
        ("index", "x = a - b - c;", ["x = a + b - c;", "x = a - c;", "x = a - b + c;", "x = a - b;"]),
        ("index", "x = (a + b) / n;", ["x = (a - b) / n;", "x = (a) / n;", "x = (b) / n;", "x = (a + b) % n;"]),
        ("phase", "ring.release(lane);", ["(void)0;", "ring.release(lane), ring.release(lane);"]),
        ("phase", "wgmma_wait<0>();", ["wgmma_wait<0 + 1>();", "(void)0;"]),
        ("phase", "if (n) mbarrier_wait(b, phase);", ["if (n) (void)0;", "if (n) mbarrier_wait(b, (phase ^ 1));"]),
        ("phase", "mbarrier_arrive(b);", ["(void)0;", "mbarrier_arrive(b), mbarrier_arrive(b);"]),
        ("stage", "x = b + ring.stage * 8;", ["x = b + (ring.stage ^ 1) * 8;"]),
        ("stage", "if (++stage == n) stage = 0;", []),
        ("mask", "if (i < n) x = 0;", ["if (true) x = 0;", "if (false) x = 0;"]),
        ("mask", "x = a && b < c;", ["x = a;", "x = b < c;"]),
        ("mask", "x = a & 255u;", ["x = a;"]),
        ("mask", "x = a < b ? c : d ? e : f;", [
            "x = (c);", "x = (d ? e : f);", "x = a < b ? c : (e);", "x = a < b ? c : (f);",
        ]),
        ("mask", "x = min(a + 1, b);", ["x = (a + 1);", "x = (b);"]),
        ("mask", "x = !a;", ["x = a;"]),
        ("scale", "x = a * b * c;", ["x = a * c;", "x = b * c;", "x = a * b;"]),
        ("scale", "x = f(0.5f, 0.0f);", ["x = f(1.0f, 0.0f);", "x = f(0.5f, 1.0f);"]),
        ("scale", "x = f(-a);", ["x = f(a);"]),
        ("scale", "x[i] *= a, y = b;", ["x[i] *= 1, y = b;", "x[i] = a, y = b;"]),
        ("scale", "x += a;", ["x += 0;", "x = a;"]),
        ("scale", "for (int i = 0; i < n; i += 8) x ^= a;", [
            "for (int i = 0; i < n; i += 8) x ^= 0;", "for (int i = 0; i < n; i += 8) x = a;",
        ]),
        ("scale", "float x = a + b, y = c;", ["float x = 2 * (a + b), y = c;"]),
        ("swap", "x = f(a - b * c, d);", ["x = f((b * c) - (a), d);"]),
        ("swap", "x = a ? b : c;", ["x = a ? (c) : (b);"]),
        ("swap", "x = v.z + low_half(a);", ["x = v.w + low_half(a);", "x = v.z + high_half(a);"]),
        ("swap", "x = fmaf(a, b, c[0]);", ["x = fmaf(a, c[0], b);"]),
    ],
)  # fmt: skip
def test_an_operator_makes_its_changes(operator: str, line: str, becomes: list[str]) -> None:
    assert changed_lines(line, operator) == becomes


@pytest.mark.parametrize(
    "line",
    [
        "// x = 1 + 2;",
        "/* x = 1 + 2; */",
        'static_assert(1 + 1 == 2, "a < b");',
        "#pragma unroll 1",
        "float a, b[2], c[3][4] = {{}};",
        "const Column& from = to;",
        "f<2, true>(*a, &b);",
        "hold(a), increase_registers<232>();",
    ],
)
def test_what_computes_nothing_is_left_alone(line: str) -> None:
    assert list(mutants_of("kernel.cuh", FUNCTION.format(line))) == []


def test_a_mutant_is_named_by_its_function_or_constant() -> None:
    text = """
constexpr int SIZE = 2 * 4;
struct Ring {
    static constexpr float LOWEST = -66.0f;
    __device__ int next() const { return stage + 1; }
};
extern "C" __global__ void __launch_bounds__(SIZE + 1) kernel(const float* x, int n) { x[n] = 0; }
"""
    functions = dict.fromkeys(m.id.rsplit(":", 2)[0] for m in mutants_of("kernel.cu", text))
    assert [*functions] == [f"kernel.cu:{name}" for name in ("SIZE", "Ring.LOWEST", "Ring.next", "kernel")]
    moved = mutants_of("kernel.cu", text.replace("= 2 * 4", "= 8").replace("struct", "\n\nstruct"))
    assert [m.id for m in moved if "SIZE" not in m.id] == [
        m.id for m in mutants_of("kernel.cu", text) if "SIZE" not in m.id
    ]


def test_every_file_has_mutants_by_every_operator_and_each_has_its_own_id() -> None:
    mutants = all_mutants()
    assert len({m.id for m in mutants}) == len(mutants)
    that_only_include = {"ssd.cu", "ssd_bwd.cu", "selective_scan.cu"}
    assert {m.file for m in mutants} == frozenset().union(*map(files_of, SOURCES)) - that_only_include
    assert {m.operator for m in mutants} == set(OPERATORS)
    assert all(m.change[0] != m.change[1] for m in mutants)
    assert not any(m.file in {"hardware.cuh", "hopper.cuh", "wgmma.cuh"} for m in mutants)
