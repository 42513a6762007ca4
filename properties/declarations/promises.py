"""The guarantees of a kernel's design, as data. They decide on bitwise checks and on the constants of the budget."""

from dataclasses import dataclass
from typing import Literal, get_args

from packproof.base.declared import require, require_bool
from packproof.base.errors import UsageError, checked_init

Grid = Literal["sequence", "token", "pack"]
Compute = Literal["fp32", "operand", "tf32"]
StateEntry = Literal["carry", "folded"]
_CHOICES = {"grid": get_args(Grid), "compute": get_args(Compute), "state_entry": get_args(StateEntry)}


@checked_init
@dataclass(frozen=True)
class Promises:
    """The promises of a kernel. By default it promises nothing and is checked within the error budget only.

    Raises UsageError for another value of `grid`, `compute` or `state_entry`, for a chunk or segment that is no number
    of tokens, and for a segment of partial chunks.

    >>> import packproof
    >>> promises = packproof.Promises(grid="sequence", chunk=64, segment=256, deterministic=True)
    >>> promises.independent, promises.handover
    (True, 256)
    """

    grid: Grid | None = None
    """The starts of the kernel's chunks. "sequence": at the start of each sequence; "token": no chunk carries a state,
    an element depends on its own window alone; "pack": at multiples of the chunk from the start of the pack. The first
    two make `packing`, `permutation` and finite `isolation` bitwise.
    """
    chunk: int | None = None
    """Tokens in a chunk; scales the layouts and, with `cumsum`, the budget."""
    compute: Compute | None = None
    """The rounding of intermediates: "fp32" (none), "operand" (to the dtype of the tokens), "tf32". None is the usual
    one of the op: "operand" for ops built on matrix products, "fp32" for the others.
    """
    deterministic: bool = False
    """The same call gives the same bits."""
    isolated: bool = False
    """NaN, Inf and huge values in one sequence leave the others' bits alone (masks select, they never multiply)."""
    state_entry: StateEntry | None = None
    """How an initial state enters. "carry": as the carry of the first chunk. A run that is cut at a multiple of
    `segment` and continued then has the bits of one run; so has one that is continued with the keys of earlier tokens.
    """
    cumsum: bool = False
    """Decays are differences of a cumulative sum from the start of a chunk. Their error grows with the sum up to the
    token, and the sum itself is not rounded as operands are.
    """
    segment: int | None = None
    """Tokens between two hand-overs of the state to another program, a multiple of `chunk`; None: the chunk. Layouts at
    its edges are added if no other layout is that long.
    """
    saved_outputs: bool = False
    """The backward pass reads the stored outputs, as in torch's softmax, sigmoid and tanh. In 16 bits their rounding
    reaches the gradients, and adds u_saved B to the budget of these.
    """
    capturable: bool = False
    """A CUDA graph can capture a call, with its backward pass, and replay it with other boundaries of as many sequences
    and tokens: the call neither waits for the GPU nor reads cu_seqlens on the host.
    """
    steady: bool = False
    """A new layout of as many sequences and tokens as before makes a call, with its backward pass, compile and tune
    nothing, read no tensor of the device on the host, and keep no memory allocated beyond what earlier layouts did.
    """
    compilable: bool = False
    """`torch.compile` can compile a call, with its backward pass. Otherwise an error of torch's own compiler is
    reported, but is no failure. A kernel made of operators registered with torch implies this promise.
    """

    def __post_init__(self) -> None:
        for name, words in _CHOICES.items():
            value = getattr(self, name)
            expected = f"one of {', '.join(map(repr, words))}, or None"
            require(value is None or value in words, "promises", name, value, expected)
        for name in ("deterministic", "isolated", "cumsum", "saved_outputs", "capturable", "steady", "compilable"):
            require_bool("promises", name, getattr(self, name))
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
        """Tokens between two hand-overs of the state from one program to the next."""
        return self.segment or self.chunk or 1

    @property
    def independent(self) -> bool:
        """Whether an element's floating-point operations cannot depend on the other sequences."""
        return self.grid in ("sequence", "token")
