"""Autotuned kernels: each kind of call gets a configuration that fits, the same in any process, without timing."""

from typing import Any

import pytest

from packproof.harness.interpreter.tuning import draw_configurations

triton = pytest.importorskip("triton")
autotuner = pytest.importorskip("triton.runtime.autotuner")

TOO_LARGE = 8


class Launched:
    """Stands in for a compiled kernel: records which configurations were launched."""

    __name__ = "kernel"
    arg_names = ("x", "n")

    def __init__(self) -> None:
        self.blocks: list[int] = []

    @staticmethod
    def fn() -> None: ...

    def run(self, *args: Any, BLOCK: int, **options: Any) -> None:
        self.blocks.append(BLOCK)
        if BLOCK == TOO_LARGE:
            raise autotuner.OutOfResources(2, 1, "shared memory")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prune_configs", "_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, getattr(autotuner.Autotuner, name))  # restored later
    draw_configurations()


def launched(n: int) -> list[int]:
    """The configurations that a kernel launches in its own process for a call of this kind, made twice."""
    kernel = Launched()
    configs = [triton.Config({"BLOCK": block}) for block in (TOO_LARGE, 16, 32, 64)]
    tuned = autotuner.Autotuner(kernel, ["x", "n"], configs, ["n"], None, None)
    for _ in range(2):
        tuned.run(None, n)
    return kernel.blocks


@pytest.mark.usefixtures("drawn")
def test_a_kind_of_call_has_one_configuration_that_fits_and_other_kinds_have_others() -> None:
    every = [launched(n) for n in range(20)]
    for blocks in every:
        timed, *calls = [block for block in blocks if block != TOO_LARGE]
        assert calls == [timed, timed]
    assert {blocks[-1] for blocks in every} == {16, 32, 64}
    assert any(TOO_LARGE in blocks for blocks in every)


@pytest.mark.usefixtures("drawn")
def test_another_process_draws_the_same() -> None:
    assert [launched(n) for n in range(5)] == [launched(n) for n in range(5)]
