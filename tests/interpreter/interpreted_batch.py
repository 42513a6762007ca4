"""All programs at once: the bits of one program after another, its faults with their texts, its memory."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.language.extra import libdevice

from packproof.base.errors import KernelFault
from packproof.debug.local import LocalRunner
from packproof.harness.process.execution.execute import InProcess
from packproof.interpreter import repair
from packproof.interpreter.batch import blocks, selftest, shadow, world
from packproof.interpreter.batch.launch import BatchingSanitizer
from packproof.interpreter.batch.programs import programs
from packproof.interpreter.batch.rewrite import batch_function
from packproof.interpreter.sanitizer import Launch, Order, Sanitizer
from packproof.properties.calling.call import Call
from tests.interpreter import triton_batches, triton_fallbacks, triton_races, triton_samples
from tests.interpreter.interpreted_sanitizer import CASES, CORRECT, FAULTS

repair.install()


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    BatchingSanitizer.unsupported_kernels.clear()


@pytest.fixture
def _samples_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases of the sanitizer run in batches, even those of one program."""

    def sanitizer(read_only: Any = (), order: Order = "forward", seed: int = 0) -> Sanitizer:
        return BatchingSanitizer(read_only) if order == "forward" else Sanitizer(read_only, order, seed)

    for module in (triton_samples, triton_races):
        monkeypatch.setattr(module, "Sanitizer", sanitizer)


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(torch.uint8)


class InThrees(BatchingSanitizer):
    batch_sizes = (3,)


class InThreesIfLarge(BatchingSanitizer):
    batch_sizes = (1024, 3)


def ordered_up_to(programs: int) -> type[BatchingSanitizer]:
    return type("Ordered", (BatchingSanitizer,), {"max_ordered_programs": programs})


def both(
    run: Callable[[], list[Tensor]], order: Order = "forward", kind: type[BatchingSanitizer] = BatchingSanitizer
) -> BatchingSanitizer:
    """The sanitizer of a batch that has the results of programs one after another."""
    with Sanitizer(order=order):
        wanted = run()
    with kind(order=order) as sanitizer:
        got = run()
    assert all(torch.equal(bits(w), bits(g)) for w, g in zip(wanted, got, strict=True))
    return sanitizer


@pytest.mark.parametrize("name", triton_batches.LAUNCHES)
def test_a_batch_has_the_bits_of_one_program_after_another(name: str) -> None:
    sanitizer = both(triton_batches.LAUNCHES[name])
    assert sanitizer.batches == sanitizer.launches > 0


@pytest.mark.parametrize("name", triton_batches.LAUNCHES)
def test_groups_of_programs_have_them_too(name: str) -> None:
    sanitizer = both(triton_batches.LAUNCHES[name], kind=InThrees)
    assert sanitizer.batches == sanitizer.launches


def test_a_batch_of_large_blocks_has_fewer_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = []
    begin = programs.begin

    def note(linear: Any, grid: tuple[int, ...]) -> None:
        groups.append(len(linear))
        begin(linear, grid)

    monkeypatch.setattr(programs, "begin", note)
    monkeypatch.setattr(blocks, "MAX_ELEMENTS", 3 * 16 * 32)
    assert both(triton_batches.LAUNCHES["products_of_torch.float32"], kind=InThreesIfLarge).batches == 1
    assert groups == [7, 3, 3, 1]


@pytest.mark.parametrize("name", triton_fallbacks.ONE_BY_ONE)
def test_what_no_batch_can_do_runs_one_by_one(name: str) -> None:
    launch, reason = triton_fallbacks.ONE_BY_ONE[name]
    sanitizer = both(launch)
    assert sanitizer.batches == 0
    assert [str(why) for why in BatchingSanitizer.unsupported_kernels.values()] == ([reason] if reason else [])


@pytest.mark.parametrize(("few", "together"), [(triton_batches.PROGRAMS, False), (triton_batches.PROGRAMS - 1, True)])
def test_in_a_given_order_only_more_than_a_few_programs_run_together(few: int, together: bool) -> None:
    sanitizer = both(triton_batches.LAUNCHES["products_of_torch.float32"], "reverse", ordered_up_to(few))
    assert sanitizer.batches == (sanitizer.launches if together else 0)


def test_a_batch_that_gives_up_runs_in_the_given_order(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    coordinates = Launch.coordinates

    def noted(launch: Launch, program: int) -> tuple[int, int, int]:
        started.append(program)
        return coordinates(launch, program)

    monkeypatch.setattr(Launch, "coordinates", noted)
    run, reason = triton_fallbacks.ONE_BY_ONE["a_counter_after_its_loop"]
    with ordered_up_to(1)(order="reverse") as sanitizer:
        run()
    assert (sanitizer.batches, [str(why) for why in BatchingSanitizer.unsupported_kernels.values()]) == (0, [reason])
    assert started == [*range(triton_batches.PROGRAMS)][::-1]


@pytest.mark.skipif(triton_samples.TRITON < (3, 6), reason="triton 3.5 has no hooks")
def test_hooks_run_once_although_the_launch_starts_again() -> None:
    with BatchingSanitizer() as sanitizer:
        assert triton_fallbacks.hooks_of_a_launch_that_starts_again() == 1
    assert sanitizer.batches == 0


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.usefixtures("_samples_in_batches")
def test_faults_have_the_texts_of_one_program_after_another(case: str) -> None:
    with pytest.raises(KernelFault) as found:
        CASES[case]()
    assert str(found.value) == FAULTS[case]


@pytest.mark.parametrize("case", [name for name in FAULTS if "write" in name or "lost" in name])
@pytest.mark.usefixtures("_samples_in_batches")
def test_loads_are_known_to_later_stores_however_few_are_kept(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "_MAX_PENDING_LANES", 0)
    with pytest.raises(KernelFault) as found:
        CASES[case]()
    assert str(found.value) == FAULTS[case]


@pytest.mark.parametrize("case", CORRECT)
@pytest.mark.usefixtures("_samples_in_batches")
def test_correct_kernels_pass(case: str) -> None:
    CASES[case]()


@pytest.mark.parametrize("name", triton_fallbacks.ROGUES)
def test_a_kernel_that_tells_a_batch_from_one_by_one_is_reported(name: str) -> None:
    launch, text = triton_fallbacks.ROGUES[name]
    with pytest.raises((KernelFault, AssertionError)) as found, BatchingSanitizer():
        launch()
    assert str(found.value) == text


def test_a_device_assert_of_one_program_is_raised_as_it_is_one_by_one() -> None:
    with pytest.raises(AssertionError, match=r"^below 5$"), BatchingSanitizer():
        triton_fallbacks.assert_below(5)
    with BatchingSanitizer() as sanitizer:
        triton_fallbacks.assert_below(7)
    assert sanitizer.batches == 1


@pytest.mark.parametrize(
    ("runner", "guard", "programs"),
    [
        (InProcess, False, [[0, 1, 2, 3]]),
        (InProcess, True, [[3], [2], [1], [0]]),
        (LocalRunner, False, [[0], [1], [2], [3]]),  # where breakpoints work
    ],
)
def test_who_runs_programs_together(
    runner: type[InProcess], guard: bool, programs: list[list[int]], make_call: Callable[..., Call]
) -> None:
    call = make_call(3, 1, wrt=(), cotangents={}, guard=guard)
    result = runner(triton_fallbacks.scale).run(call)
    assert triton_fallbacks.programs_of_each_call() == programs
    assert torch.equal(result.outputs["y"], call.inputs["x"] * call.inputs["weight"])


@pytest.mark.parametrize(
    "name",
    [
        "create_trans",
        "create_masked_load",
        "create_masked_store",
        "operand_values",
        "__add__",
        "apply_impl",
        "generic_reduce",
        "__call__",
    ],
)
def test_without_a_replacement_the_self_test_refuses_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert selftest.run() == ""
    known = [replacement for replacement in world._batch_replacements if replacement[1] != name]
    assert len(known) < len(world._batch_replacements)
    monkeypatch.setattr(world, "_batch_replacements", known)
    assert selftest.run()


def test_without_a_function_of_libdevice_for_batches_it_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libdevice, "tanh", libdevice.tanh.__wrapped__)
    assert selftest.run()


def test_where_the_self_test_fails_programs_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "_is_proved", False)
    monkeypatch.setattr(BatchingSanitizer, "unfit_reason", "")
    monkeypatch.setattr(selftest, "run", lambda: "control flow: no batch ran: it raised")
    with pytest.warns(UserWarning, match="one after another, several times slower: control flow: no batch ran"):
        repair.install()
    assert both(triton_batches.LAUNCHES["branches"]).batches == 0


def test_different_bits_are_found_by_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    transpose = blocks.transpose
    found = [
        (*row[:3], property(lambda t: transpose(t) * 1.01)) if row[1] == "T" else row
        for row in world._batch_replacements
    ]
    monkeypatch.setattr(world, "_batch_replacements", found)
    assert selftest.run() == "blocks of float32: programs that run together have other bits than one after another"


def test_a_kernel_keeps_the_lines_of_its_source() -> None:
    function = triton_batches._masked_kernel.fn
    lines = {line for *_, line in batch_function(function).__code__.co_lines() if line}
    written, first = inspect.getsourcelines(function)
    assert {first + 2, first + len(written) - 1} <= lines <= {*range(first, first + len(written))}
