"""The steady property: what it says of each kernel that costs something at each new layout, and what it lets be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import adapters
from packproof.harness.process.execution.execute import InProcess
from packproof.museum import new_layouts
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.declarations.declaration import describe_kernel
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from packproof.properties.steadiness.law import STEADY
from packproof.properties.steadiness.layouts import Layouts
from tests.properties.wrong import sequences, vectorised

OP = OPS["causal_conv1d"]
STEADILY = Promises(steady=True)


@pytest.fixture(autouse=True)
def no_tensors_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the museum's kernels keep would grow no more where another test of this process has called them."""
    for name in ("_tables", "_workspaces"):
        monkeypatch.setattr(new_layouts, name, {})


def judge(
    function: Callable[..., Any], promises: Promises = STEADILY, lengths: tuple[int, ...] = ()
) -> Violation | None:
    space = Space(OP, "float32", promises, frozenset(describe_kernel(function)["parameters"]))
    kernel = KernelUnderTest(OP, InProcess(function), promises)
    [case] = STEADY.suited(space, [])
    return first_violation(kernel, STEADY, case.replace(lengths=lengths or case.lengths))


SLOW = {
    "table_of_each_pack": "keeps more memory with each of 15 layouts",
    "workspace_of_each_longest": "keeps more memory with each of 15 layouts",
    "rows_by_a_mask": "reads aten::index at new_layouts.py",
    "sequences_repeated": "reads aten::repeat_interleave at new_layouts.py",
    "compiled_for_the_longest": "compiles a graph of torch.compile",
}


@pytest.mark.parametrize("name", SLOW)
def test_what_a_new_layout_costs_is_named(name: str) -> None:
    violation = judge(getattr(new_layouts, name))
    assert violation is not None
    assert violation.text.startswith(SLOW[name])
    assert violation.note.startswith("in a new layout of a known shape, lengths [")


@pytest.mark.parametrize("name", ["rows_by_a_choice", "table_of_the_last_pack", "workspace_of_the_pack"])
def test_its_correct_form_passes(name: str) -> None:
    assert judge(getattr(new_layouts, name)) is None


def test_memory_that_does_not_grow_passes_with_few_layouts_too() -> None:
    assert judge(new_layouts.rows_by_a_choice, lengths=(2, 1, 1, 1)) is None


def test_one_that_promises_nothing_is_not_judged() -> None:
    assert judge(new_layouts.rows_by_a_mask, Promises()) is None


def reads(read: Callable[[Tensor], object]) -> Callable[..., Tensor]:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        read(cu_seqlens)
        return vectorised(x, weight, sequences(x, cu_seqlens))

    return kernel


def _filled(offsets: Tensor, value: Tensor | int, least: int = 3) -> None:
    offsets.clone()[offsets > least] = value


READS: dict[str, Callable[[Tensor], object]] = {
    "aten::_local_scalar_dense": lambda o: int(o[-1]),
    "Tensor.tolist": lambda o: o.tolist(),
    "Tensor.numpy": lambda o: o.numpy(),
    "Tensor.cpu": lambda o: o.cpu(),
    "Tensor.to": lambda o: o.to("cpu"),
    "aten::nonzero": lambda o: o.nonzero(),
    "aten::_unique2": lambda o: o.unique(),
    "aten::equal": lambda o: torch.equal(o, o + 1),
    "aten::index": lambda o: o[o > 3],
    "aten::index_put_": lambda o: _filled(o, o[:0], least=10**6),
}
FREE: dict[str, Callable[[Tensor], object]] = {
    "a mask filled with a number": lambda o: _filled(o, 0),
    "an index of integers": lambda o: o[torch.arange(2)],
    "a number of the host": lambda o: torch.tensor([1, 2]).cumsum(0)[-1].item(),
    "a list of the host": lambda o: torch.tensor([1, 2]).tolist(),
    "repeated so often": lambda o: torch.repeat_interleave(torch.ones_like(o), 2),
    "its own device": lambda o: o.to(o.device),
    "a shape": lambda o: o.shape[0],
}


@pytest.mark.parametrize("name", READS)
def test_each_way_to_read_a_tensor_is_seen(name: str) -> None:
    violation = judge(reads(READS[name]))
    assert violation is not None
    assert violation.text.startswith(f"reads {name} at test_steady.py:")


@pytest.mark.parametrize("name", FREE)
def test_what_waits_for_no_device_is_free(name: str) -> None:
    assert judge(reads(FREE[name])) is None


def _on_the_host(x: Tensor, weight: Tensor, offsets: Tensor, lengths_on_host: Tensor) -> Tensor:
    assert sum(lengths_on_host.tolist()) <= len(x)
    return vectorised(x, weight, sequences(x, offsets))


def test_what_an_adapter_puts_on_the_host_is_free_to_read() -> None:
    def adapted(**metadata: Any) -> Callable[..., Any]:
        names = {"offsets": adapters.cu_seqlens, **metadata}
        return adapters.adapt(_on_the_host, op="causal_conv1d", metadata=names)

    assert judge(adapted(lengths_on_host=lambda o, _: o.diff().to("cpu", copy=True))) is None
    violation = judge(adapted(lengths_on_host=lambda o, _: o.diff()))
    assert violation is not None
    assert violation.text.startswith("reads Tensor.tolist at test_steady.py:")


def _as_peer(library: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """A function of `adapters.peers`: it reads the longest length for a library's function, which is not its own."""
    source = """
def peer(x, weight, *, cu_seqlens):
    longest = int(cu_seqlens.diff().max())
    assert longest == max_seqlen(cu_seqlens, len(x))
    return vectorised(x, weight, library(x, cu_seqlens))
"""
    names: dict[str, Any] = {"vectorised": vectorised, "max_seqlen": adapters.max_seqlen, "library": library}
    exec(compile(source, str(Path(adapters.__file__).parent / "peers" / "peer.py"), "exec"), names)
    peer: Callable[..., Tensor] = names["peer"]
    return peer


def test_of_a_peer_what_its_library_reads_counts_alone() -> None:
    assert judge(_as_peer(sequences)) is None
    violation = judge(_as_peer(lambda x, offsets: torch.tensor(sequences(x, offsets).tolist())))
    assert violation is not None
    assert violation.text.startswith("reads Tensor.tolist at test_steady.py:")


def test_layouts_of_one_shape_differ_in_their_lengths_alone() -> None:
    case = Case((18, 17, 17, 17), "float32", (("d", 2), ("w", 4)))
    layouts = Layouts.of_one_shape(case, lambda layout: True)
    every = [*layouts.warm_up, *layouts.new, *layouts.spare]
    assert len(set(every)) == len(every)
    assert {(sum(x.lengths), len(x.lengths)) for x in every} == {(69, 4)}
    assert {max(x.lengths) % 16 == 0 for x in layouts.warm_up} == {True, False}
    assert (69, 0, 0, 0) in {tuple(sorted(x.lengths, reverse=True)) for x in layouts.warm_up}
    assert len({max(x.lengths) for x in [*layouts.new, *layouts.spare]}) == len(layouts.new) + len(layouts.spare)
    assert Layouts.of_one_shape(case.replace(lengths=(7,)), lambda layout: True).new == []


def test_each_spare_layout_has_another_longest_length_of_sequences_and_of_keys() -> None:
    case = Case((18, 17, 17, 17), "float32", (("d", 2), ("k", 4)), key_lengths=(9, 9, 8, 8))
    spare = Layouts.of_one_shape(case, lambda layout: True).spare
    longest = {max(x.key_lengths or ()) for x in spare}, {max(x.lengths) for x in spare}
    assert len(longest[0]) == len(longest[1]) == len(spare) > 3
