"""What a kernel's design guarantees, as data: which checks are bitwise and the budget's constants follow from it."""

from dataclasses import dataclass
from typing import Literal, get_args

from packproof.properties.declared import require, require_switch
from packproof.refs.errors import UsageError, checked_init

Grid = Literal["sequence", "token", "pack"]
Compute = Literal["fp32", "operand", "tf32"]
StateEntry = Literal["carry", "folded"]
_WORDS = {"grid": get_args(Grid), "compute": get_args(Compute), "state_entry": get_args(StateEntry)}


@checked_init
@dataclass(frozen=True)
class Promises:
    """What a kernel declares of itself. By default it promises nothing and is checked within the error budget only.

    grid: where the kernel's chunks start. "sequence": at the start of each sequence; "token": no chunk carries
        anything, an element depends on its own window alone; "pack": at multiples of the chunk from the start of the
        pack. The first two make `packing`, `permutation` and finite `isolation` bitwise.
    chunk: tokens in a chunk; scales the layouts and, with `cumsum`, the budget.
    compute: how intermediates are rounded: "fp32" (not at all), "operand" (to the dtype of the tokens), "tf32". None
        takes what is usual for the op: "operand" for ops built on matrix products, "fp32" for the others.
    deterministic: the same call gives the same bits.
    isolated: NaN, Inf and huge values in one sequence leave the others' bits alone (masks select, they never multiply).
    state_entry: "carry" if a given state enters as the first chunk's carry; then a run cut at a multiple of `segment`
        and continued has the bits of one run.
    cumsum: decays are formed as differences of a cumulative sum inside a chunk, so that their error grows with the sum.
    segment: tokens after which the state is handed over between programs, a multiple of `chunk`; None: the chunk.
        Layouts at its edges are added where the others end before one.
    saved_outputs: the backward pass reads outputs as they were stored, as torch's softmax, sigmoid and tanh do: in 16
        bits gradients have that rounding too, which adds u_saved B to their budget alone.
    capturable: a call, with its backward pass, can be captured into a CUDA graph and replayed with other boundaries of
        as many sequences and tokens: it neither waits for the GPU nor reads cu_seqlens on the host.
    compilable: torch.compile can compile a call, with its backward pass. Without it an error of torch's own compiler is
        reported, and no failure; a kernel that calls operators registered with torch promises it by that.

    Raises UsageError for a word that is none of these, a chunk or segment that is no number of tokens, and a segment
    that is not whole chunks.

    >>> import packproof
    >>> promises = packproof.Promises(grid="sequence", chunk=64, segment=256, deterministic=True)
    >>> promises.independent, promises.handover
    (True, 256)
    """

    grid: Grid | None = None
    chunk: int | None = None
    compute: Compute | None = None
    deterministic: bool = False
    isolated: bool = False
    state_entry: StateEntry | None = None
    cumsum: bool = False
    segment: int | None = None
    saved_outputs: bool = False
    capturable: bool = False
    compilable: bool = False

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            given = getattr(self, name)
            expected = f"one of {', '.join(map(repr, words))}, or None"
            require(given is None or given in words, "promises", name, given, expected)
        for name in ("deterministic", "isolated", "cumsum", "saved_outputs", "capturable", "compilable"):
            require_switch("promises", name, getattr(self, name))
        for name in ("chunk", "segment"):
            tokens = getattr(self, name)
            if tokens is not None and (type(tokens) is not int or tokens < 1):
                raise UsageError(f"promises: {name} is {tokens!r}, expected a number of tokens, at least 1, or None")
        if self.segment is not None and (self.chunk is None or self.segment % self.chunk):
            raise UsageError(
                f"promises: segment is {self.segment} but chunk is {self.chunk}; a segment is a whole number of "
                "chunks, and None where the state is handed over after each of them"
            )

    @property
    def handover(self) -> int:
        """Tokens after which the state leaves one program and enters the next."""
        return self.segment or self.chunk or 1

    @property
    def independent(self) -> bool:
        """Whether an element's floating-point operations cannot depend on the other sequences."""
        return self.grid in ("sequence", "token")
