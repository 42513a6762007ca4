"""An op as data: the role of every axis of every tensor. All properties follow from it; nothing depends on its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packproof.properties.flops import CountFlops
from packproof.properties.promises import Promises


@dataclass(frozen=True)
class Op:
    """The declaration of an operation over packed sequences.

    reference: the slow exact function. It takes the inputs by name, `cu_seqlens` and the options, and returns the
        outputs in order (a single tensor if there is one).
    inputs, outputs: axes of each tensor by name. `t` counts packed tokens, `s` sequences; every other axis belongs to a
        shared parameter. A spec that ends in `?` is optional; `a | b` are alternatives; an axis may be `w-1`.
    options: the values that each option may take, the plainest first.
    sizes: sets of axis sizes to draw from; "longest" is the length of the longest sequence, "rows" that of the pack.
    where: what the sizes of every call satisfy, as conditions of a `packproof.Domain`: "h % g == 0".
    model_sizes: sizes as models have them, drawn besides on a GPU, where kernels are to be judged in the configurations
        that they ship; elsewhere they would only take long.
    absolute: the op on absolute values (method: B of the error budget), with the reference's signature: forward gives
        the sum of the absolute terms, and so does its vjp. None: the reference itself on the absolute values of its
        inputs.
    cumsum: makes the magnitude op for kernels that promise `cumsum` (B + B_E of the budget) from their promises.
    draws: how values are drawn, where not "normal": "decay" (negative), "step" (a positive time step; "step|o" is what
        softplus turns into one if option `o` is set), "unit" (in [-1, 1], such as cosines), "distinct" (no two rows
        alike, in any dtype: for ops that choose among rows, whose gradient has two correct values where two are equal).
    fixed: inputs and outputs that do not follow the dtype of the call: fp32, or fp64 with fp64 tokens.
    constants: inputs that are tables, without gradients.
    carry: (initial state, final state, option that requests it), if a sequence can be cut and continued.
    window: the axis whose size is the reach of a convolution; scales the layouts.
    causal: option that makes the op causal, or True or False.
    matmul: built on matrix products: a kernel may round their operands to the dtype of the tokens unless it promises
        not to.
    saved: inputs that the backward pass has to read; None: all. flops: counts the operations of both passes. A bench
        derives from them what a call costs at least.
    """

    name: str
    reference: Callable[..., Any]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sizes: tuple[Mapping[str, int | str], ...] = ({"d": 3},)
    where: tuple[str, ...] = ()
    model_sizes: tuple[Mapping[str, int | str], ...] = ()
    absolute: Callable[..., Any] | None = None
    cumsum: Callable[[Promises], Callable[..., Any]] | None = None
    draws: Mapping[str, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    constants: frozenset[str] = frozenset()
    carry: tuple[str, str, str] | None = None
    window: str | None = None
    causal: bool | str = True
    matmul: bool = False
    saved: frozenset[str] | None = None
    flops: CountFlops | None = None
