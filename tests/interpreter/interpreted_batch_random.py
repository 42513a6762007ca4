"""Kernels of random control flow: the bits of a batch are those of one program after another."""

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from packproof.interpreter import repair
from packproof.interpreter.batch.launch import BatchingSanitizer
from packproof.interpreter.sanitizer import Sanitizer
from tests.sweeps import sweep

repair.install()

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def helper(x, y, pid, a):
    b = a + pid
    c = pid * 2
{helper}
    tl.store(y + 2 * pid + 1, (a + b * 7 + c * 13).to(tl.int32))

@triton.jit
def kernel(x, y):
    pid = tl.program_id(0)
    a = pid + 1
    b = pid * 3
    c = pid * 0 + 2
{first}
    helper(x, y, pid, a)
{last}
    tl.store(y + 2 * pid, (a + b * 7 + c * 13).to(tl.int32))
"""


class _Writer:
    """Draws statements; those of the helper store to the odd elements of y before they return."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._loops = 0

    def kernel(self) -> str:
        blocks = {"helper": self._block(1, 1, 1), "first": self._block(0, 1, 0), "last": self._block(1, 1, 0)}
        return KERNEL.format(**{name: "\n".join(lines) for name, lines in blocks.items()})

    def _pick(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _number(self, depth: int = 0) -> str:
        simple = ("pid", "a", "b", "c", str(self._random.randrange(1, 9)))
        if depth == 2:
            return self._pick(*simple)
        left, right = self._number(depth + 1), self._number(depth + 1)
        return self._pick(
            *simple,
            f"({left} + {right})",
            f"({left} * 3 - {right})",
            f"({left} + pid) % 5",
            f"tl.load(x + tl.abs({left} + pid * 0) % 32)",
        )

    def _test(self, depth: int = 0) -> str:
        simple = f"{self._number(1)} {self._pick('<', '>', '==', '<=', '!=')} {self._number(1)} + pid * 0"
        if depth == 2:
            return simple
        left, right = self._test(depth + 1), self._test(depth + 1)
        return self._pick(simple, f"({left} and {right})", f"({left} or {right})", f"not ({left})", "(pid % 3 == 1)")

    def _block(self, depth: int, indent: int, odd: int) -> list[str]:
        return [
            "    " * indent + line for _ in range(self._random.randrange(1, 4)) for line in self._statement(depth, odd)
        ]

    def _statement(self, depth: int, odd: int) -> Iterator[str]:
        kind = (
            self._pick("=", "+=", "if else")
            if depth == 3
            else self._pick("=", "+=", "if else", "if", "for", "while", "end")
        )
        name, number = self._pick("a", "b", "c"), f"{self._number()} + pid * 0"
        if kind == "=":
            yield f"{name} = {number}"
        elif kind == "+=":
            yield f"{name} += {number}"
        elif kind == "if else":
            yield f"{name} = {number} if {self._test()} else {self._number()} + pid * 0"
        elif kind == "end":
            yield f"if {self._test()}:"
            yield from self._block(depth + 1, 1, odd)
            yield f"    tl.store(y + 2 * pid + {odd}, (a + b * 7 + c * 13).to(tl.int32))"
            yield "    return"
        elif kind == "if":
            yield f"if {self._test()}:"
            yield from self._block(depth + 1, 1, odd)
            yield f"elif {self._test()}:"
            yield from self._block(depth + 1, 1, odd)
            yield "else:"
            yield from self._block(depth + 1, 1, odd)
        else:
            yield from self._loop(kind, depth, odd)

    def _loop(self, kind: str, depth: int, odd: int) -> Iterator[str]:
        self._loops += 1
        counter = f"i{self._loops}"
        if kind == "for":
            end = self._pick("3", "tl.load(x + pid) % 4")
            yield f"for {counter} in range({self._pick('0', '1', 'pid % 3')}, {end}):"
            yield from self._block(depth + 1, 1, odd)
            yield f"    a += {counter}"
        else:
            yield f"{counter} = {self._pick('pid % 4', '3 + pid * 0', 'tl.load(x + pid) % 5')}"
            yield f"while {counter} > 0 and {self._test(1)}:"
            yield from self._block(depth + 1, 1, odd)
            yield f"    {counter} -= 1"


def _results(file: Path, sanitizer: Sanitizer) -> Tensor:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randint(0, 9, (32,), generator=torch.Generator().manual_seed(0)).int()
    y = torch.full((22,), -999, dtype=torch.int32)
    with sanitizer:
        module.kernel[(11,)](x, y)
    return y


@sweep("seed", sample=range(5), rest=range(5, 60))
def test_random_control_flow_has_the_bits_of_one_program_after_another(seed: int, tmp_path: Path) -> None:
    file = tmp_path / f"random_kernel_{seed}.py"
    file.write_text(_Writer(seed).kernel())
    together = BatchingSanitizer()
    assert torch.equal(_results(file, together), _results(file, Sanitizer())), file.read_text()
    assert together.batches == 1, (BatchingSanitizer.unsupported_kernels, file.read_text())
