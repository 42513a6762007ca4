"""Autotuned kernels: each kind of call gets a configuration that fits, the same in any process, without timing."""

from typing import Any

import pytest

from packproof.interpreter.tuning.choice import TUNING, Tuning, configuration_index
from packproof.interpreter.tuning.triton_tuner import draw_configurations
from packproof.interpreter.tuning.use import use_configuration

triton = pytest.importorskip("triton")
autotuner = pytest.importorskip("triton.runtime.autotuner")

TOO_LARGE = 8


class Launched:
    """Stands in for a compiled kernel: records which configurations were launched."""

    __name__ = "kernel"
    arg_names = ("x", "n")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.warps: list[int] = []

    @staticmethod
    def fn() -> None: ...

    def run(self, *args: Any, BLOCK: int, num_warps: int, **options: Any) -> None:
        self.blocks.append(BLOCK)
        self.warps.append(num_warps)
        if BLOCK == TOO_LARGE:
            raise autotuner.OutOfResources(2, 1, "shared memory")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run", "prune_configs", "_bench", "do_bench"):
        monkeypatch.setattr(autotuner.Autotuner, name, vars(autotuner.Autotuner)[name])  # restored later
    for name, value in vars(Tuning()).items():
        monkeypatch.setattr(TUNING, name, value)
    draw_configurations("cuda")


def launched(n: int, number: int = 0) -> list[int]:
    """The configurations that a kernel launches in its own process for a call of this kind, made twice."""
    kernel = Launched()
    configs = [triton.Config({"BLOCK": block}) for block in (TOO_LARGE, 16, 32, 64)]
    tuned = autotuner.Autotuner(kernel, ["x", "n"], configs, ["n"], None, None)
    with use_configuration(number) as ran:
        for _ in range(2):
            tuned.run(None, n)
    [report] = ran()
    assert [text.partition(",")[0] for text in report.ran] == [f"BLOCK={kernel.blocks[-1]}"]
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


@pytest.mark.usefixtures("drawn")
def test_further_numbers_take_the_other_configurations_of_the_same_kind_of_call() -> None:
    blocks = [launched(5, number)[-1] for number in range(4)]
    assert set(blocks) == {16, 32, 64}
    assert [launched(5, number)[-1] for number in range(4)] == blocks


@pytest.mark.parametrize("configurations", [2, 3, 7])
def test_each_turn_takes_every_configuration_once(configurations: int) -> None:
    places = [configuration_index(number, configurations, "kernel") for number in range(10 * configurations)]
    assert places[:configurations] == list(range(configurations))
    for turn in range(10):
        assert sorted(places[turn * configurations :][:configurations]) == list(range(configurations))


def test_kernels_with_lists_of_the_same_length_meet_in_every_combination() -> None:
    pairs = {
        (configuration_index(number, 3, "_forward_kernel"), configuration_index(number, 3, "_backward_kernel"))
        for number in range(60)
    }
    assert len(pairs) == 9


@pytest.mark.usefixtures("drawn")
def test_few_numbers_meet_every_value_of_the_kernels_own_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TUNING, "draws", False)
    configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (16, 32) for warps in (1, 2, 4)]
    kernel = Launched()
    tuned = autotuner.Autotuner(kernel, ["x", "n"], configs, ["n"], None, None)
    for number in range(6):
        with use_configuration(number):
            tuned.run(None, 1)
    ran = list(zip(kernel.blocks[::2], kernel.warps[::2], strict=True))
    assert ran == [(16, 1), (32, 1), (16, 2), (32, 2), (16, 4), (32, 4)]


@pytest.mark.usefixtures("drawn")
def test_a_configuration_that_the_kernel_has_pinned_stays() -> None:
    configs = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]
    kernel = Launched()
    tuned = autotuner.Autotuner(kernel, ["x", "n"], configs, ["n"], None, None)
    tuned.cache[(1,)] = configs[1]
    for number in range(3):
        with use_configuration(number):
            tuned.run(None, 1)
    assert kernel.blocks == [32, 32, 32]
