"""What a check has to do: the request, its profiles, and whether the names in it exist."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packproof.harness.results.events import Tier
from packproof.harness.results.expected import ExpectedFailures
from packproof.harness.results.names import COMPILE, DEVICES, TOOLS, known
from packproof.harness.targets.location import Location, absent
from packproof.properties.cases.case import SHORT
from packproof.properties.laws.names import LAWS
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.refs.errors import UsageError

if TYPE_CHECKING:
    from packproof.properties.laws.property import Property

TIME_LIMITS = {"cpu": 30.0, "cuda": 120.0}  # seconds for one call


@dataclass
class Allowance:
    """How much shrinking may cost: kernel cases tried and seconds."""

    tries: int
    seconds: float


@dataclass(frozen=True)
class Profile:
    """How much a check does. examples: random cases after the golden ones, by tier. shrink: what a failure may cost."""

    examples: Mapping[Tier, int]
    shrink: Allowance


PROFILES: Mapping[str, Profile] = {
    "quick": Profile({"interpret": 0, "eager": 0, "gpu": 0}, Allowance(150, 10)),
    "standard": Profile({"interpret": 2, "eager": 50, "gpu": 100}, Allowance(400, 30)),
    "thorough": Profile({"interpret": 100, "eager": 1000, "gpu": 2000}, Allowance(2000, 120)),
}


@dataclass(frozen=True)
class CheckRequest:
    """What to check.

    target: "package.module:function", "path/file.py:function", a function, or None for packproof's own kernels.
    op: an op, its name, or "module:NAME" of a declared Op; None takes the one that the target declares.
    properties: of these alone, each a Property, its name, or "module:NAME"; None for all of packproof's.
    domain: conditions on the calls that the kernel supports, beside those declared. promises: instead of declared ones.
    questions: whether it is tested for what it does not promise; strict: whether that counts like the rest.
    timeout: seconds that one call of the kernel may take. forward_only: do not differentiate.
    draw_configs: kernels that tune themselves get configurations drawn for each kind of call, untimed; without it they
    are timed on a GPU, and on a CPU each case has the next one.
    sanitizer: a tool of NVIDIA's compute-sanitizer, which watches the golden cases instead of the properties.
    fail_fast: the run ends at the first failure. max_time: seconds that it may take, once the kernels are imported;
    what it does not reach in them is inconclusive. compiled: a file of what forms of packproof's own kernels take of a
    GPU; those that have not changed since are not compiled again, but for a sample, which has to agree.
    expected_failures: a file that says what fails, and does not fail the run unless it stops failing.
    """

    target: str | Callable[..., Any] | None = None
    op: str | Op | None = None
    device: str = "cpu"
    dtypes: tuple[str, ...] | None = None
    properties: "tuple[str | Property, ...] | None" = None
    profile: str = "standard"
    seed: int = 0
    timeout: float | None = None
    forward_only: bool = False
    promises: Promises | None = None
    domain: tuple[str, ...] = ()
    strict: bool = False
    questions: bool = True
    replay_dir: str = ".packproof"
    sanitizer: str | None = None
    draw_configs: bool = False
    fail_fast: bool = False
    max_time: float | None = None
    compiled: str | None = None
    expected_failures: str | None = None

    @cached_property
    def laws(self) -> "Mapping[str, Property]":
        """Its properties by the names that cells and replay files have for them; without the compile tier."""
        named = {p if isinstance(p, str) else p.name: p for p in self.properties or LAWS if p != COMPILE}
        return {name: resolve_property(p) for name, p in named.items()}

    @cached_property
    def expected(self) -> ExpectedFailures:
        """What its file of expected failures says. UsageError where that is wrong, or names no kernel."""
        if self.expected_failures is None:
            return ExpectedFailures()
        own = [p.name for p in self.properties or () if not isinstance(p, str)]
        found = ExpectedFailures.read(self.expected_failures, own)
        for n, entry in enumerate(found.entries, start=1):
            if ":" in entry.target and (why := absent(entry.target)):
                raise UsageError(f"expected failures: {found.file}, entry {n}: {why}")
        return found

    @property
    def compiles(self) -> bool:
        """Whether the compile tier takes part."""
        return not self.properties or COMPILE in self.properties

    @property
    def time_limit(self) -> float:
        """Seconds for one call of the kernel."""
        return self.timeout or TIME_LIMITS[self.device]


def resolve_property(given: "str | Property") -> "Property":
    """A property, from its name or "module:NAME"; UsageError where there is none."""
    from packproof.properties.laws.catalogue import PROPERTIES  # noqa: PLC0415  (torch)
    from packproof.properties.laws.property import Property  # noqa: PLC0415

    if isinstance(given, Property):
        if PROPERTIES.get(given.name, given) is not given:
            raise UsageError(f"property: packproof has a property {given.name!r} of its own; give yours another name")
        return given
    if ":" not in given:
        return PROPERTIES[known("property", given, [*LAWS, COMPILE])]
    found = Location.parse(given).find()
    if not isinstance(found, Property):
        raise UsageError(f"property: {given!r} is of type {type(found).__name__}, expected a packproof.Property")
    return found


def check_names(request: CheckRequest) -> None:
    """UsageError for a device, dtype, property or profile that does not exist, with the nearest that does; no torch."""
    known("device", request.device, DEVICES)
    known("profile", request.profile, PROFILES)
    for dtype in request.dtypes or ():
        known("dtype", dtype, SHORT)
    if request.max_time is not None and not request.max_time > 0:
        raise UsageError(f"max_time: {request.max_time} seconds; expected a number above zero, or None for no limit")
    for name in request.properties or ():
        if isinstance(name, str) and ":" not in name:
            known("property", name, [*LAWS, COMPILE])
    if request.sanitizer is not None:
        known("sanitizer", request.sanitizer, TOOLS)
    if request.compiled is not None and not Path(request.compiled).is_file():
        raise UsageError(f"compiled: {request.compiled} is no file; expected data/compiled.json of a clone, or nothing")
    _ = request.expected


def validate(request: CheckRequest) -> None:
    """UsageError for a name that does not exist, or for what is not available here."""
    import torch  # noqa: PLC0415  (a second, which a wrong name does not wait for)

    from packproof.harness.compute_sanitizer.cell import require_sanitizer  # noqa: PLC0415  (torch)

    check_names(request)
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    if request.sanitizer is not None:
        require_sanitizer(request.device)
    _ = request.laws
