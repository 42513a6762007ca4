"""The content of a file of `packproof bench ranks --json`: verdicts and times of ops on ranks."""

from collections.abc import Mapping
from dataclasses import dataclass

from packproof.base.environment import Environment
from packproof.base.wording import plural
from packproof.bench.ranks import model


@dataclass(frozen=True)
class Row:
    """Milliseconds of an op on a layout, forward and backward."""

    op: str
    layout: str
    ranks: int
    tokens: int
    """Tokens of the whole pack."""
    single_rank_ms: float
    """Milliseconds on one rank."""
    all_ranks_ms: float
    """Milliseconds on all ranks."""
    parts: Mapping[str, float]
    """Milliseconds of each part of the time on all ranks."""

    @property
    def title(self) -> str:
        return f"{self.op}, {self.layout}"

    @property
    def predicted(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def collective_ms(self) -> float:
        return sum(ms for name, ms in self.parts.items() if name != "rank")

    @property
    def rate(self) -> float:
        """The speedup over one rank."""
        return self.single_rank_ms / self.all_ranks_ms

    @property
    def model_kernel_ms(self) -> float:
        """By the cost model."""
        return model.kernel_ms(self.op, self.layout, self.ranks, self.single_rank_ms)

    @property
    def model_collective_ms(self) -> float:
        """By the cost model."""
        return model.collective_ms(self.op, self.layout, self.ranks, self.tokens)

    @property
    def model_ms(self) -> float:
        """The time on all ranks, by the cost model."""
        return self.model_kernel_ms + self.model_collective_ms

    @property
    def model_error(self) -> float:
        """The relative error of the model: measured over predicted time, minus 1."""
        return self.all_ranks_ms / self.model_ms - 1


@dataclass(frozen=True)
class OpJudgement:
    """The cases of one op at one dtype, judged."""

    op: str
    dtype: str
    cases: int
    """Packs with their cuts."""
    compared: int
    """Compared tensors and parts of tensors."""
    bitwise: int
    """Of these, the bit-for-bit comparisons."""
    failed: tuple[str, ...]
    """A line for each case that fails."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"partition {self.op} {self.dtype}: {plural(self.cases, 'case')}, {self.compared} compared, "
            f"{self.bitwise} of them bit for bit, {len(self.failed)} failed, {self.seconds:.1f} s"
        )


@dataclass(frozen=True)
class RanksDocument:
    """The content of a file."""

    packproof: str
    command: str
    """The command that wrote the file."""
    device: str
    """The name of the first rank's device."""
    environment: Environment
    ranks: int
    judged: tuple[OpJudgement, ...]
    failed: tuple[str, ...]
    """A line for each failure."""
    rows: tuple[Row, ...]
