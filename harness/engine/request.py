"""The request of a check, its profiles, and the validation of names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packproof.harness.results.events import Tier
from packproof.harness.results.expected import ExpectedFailures
from packproof.harness.results.names import COMPILE, DEVICES, TOOLS, require_known
from packproof.harness.targets.location import Location, missing_target_reason
from packproof.properties.cases.case import SHORT_DTYPES
from packproof.properties.laws.names import LAWS
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.refs.errors import UsageError

if TYPE_CHECKING:
    from packproof.properties.laws.property import Property

TIME_LIMITS = {"cpu": 30.0, "cuda": 120.0}  # seconds for one call


@dataclass
class Allowance:
    """Limits on shrinking a failure."""

    tries: int
    """Cases to run."""
    seconds: float
    """Time to spend."""


@dataclass(frozen=True)
class Profile:
    """The amount of work in a check."""

    examples: Mapping[Tier, int]
    """Random cases after the golden ones, by tier."""
    shrink: Allowance
    """Limits on shrinking a failure."""


PROFILES: Mapping[str, Profile] = {
    "quick": Profile({"interpret": 0, "eager": 0, "gpu": 0}, Allowance(150, 10)),
    "standard": Profile({"interpret": 2, "eager": 50, "gpu": 100}, Allowance(400, 30)),
    "thorough": Profile({"interpret": 100, "eager": 1000, "gpu": 2000}, Allowance(2000, 120)),
}


@dataclass(frozen=True)
class CheckRequest:
    """Everything a user can ask of a check."""

    target: str | Callable[..., Any] | None = None
    """Named "package.module:function" or "path/file.py:function", or a function; None for packproof's own kernels."""
    op: str | Op | None = None
    """An op, its name, or "module:NAME" of a declared Op; None for the op declared by the target."""
    device: str = "cpu"
    """Either "cpu" or "cuda"."""
    dtypes: tuple[str, ...] | None = None
    """None for all dtypes of the kernel."""
    properties: "tuple[str | Property, ...] | None" = None
    """Only these properties, each a Property, its name, or "module:NAME"; None for all of packproof's."""
    profile: str = "standard"
    """A name in PROFILES."""
    seed: int = 0
    """Seed of the drawn cases."""
    timeout: float | None = None
    """Seconds for one call of the kernel."""
    forward_only: bool = False
    """Do not differentiate."""
    promises: Promises | None = None
    """Instead of the declared ones."""
    domain: tuple[str, ...] = ()
    """Conditions on the supported calls, beside the declared ones."""
    strict: bool = False
    """Whether unpromised properties count like the rest."""
    questions: bool = True
    """Whether the kernel is tested for properties it does not promise."""
    replay_dir: str = ".packproof"
    """Folder for replay files."""
    sanitizer: str | None = None
    """A tool of NVIDIA's compute-sanitizer to run over the golden cases, instead of the properties."""
    draw_configs: bool = False
    """Autotuned kernels get a drawn configuration for each kind of call, untimed. Otherwise they are timed on a GPU,
    and on a CPU each case has the next configuration.
    """
    fail_fast: bool = False
    """End the run at the first failure."""
    max_time: float | None = None
    """Seconds for the run once the kernels are imported. Cells not reached by then are inconclusive."""
    compiled: str | None = None
    """A file with the GPU resources of packproof's own compiled kernels. Unchanged kernels are not compiled again,
    except a sample, which must agree with the file.
    """
    expected_failures: str | None = None
    """A file of expected failures. They do not fail the run, unless they stop failing."""

    @cached_property
    def laws(self) -> "Mapping[str, Property]":
        """The properties by their names in cells and replay files, without the compile tier."""
        named = {p if isinstance(p, str) else p.name: p for p in self.properties or LAWS if p != COMPILE}
        return {name: resolve_property(p) for name, p in named.items()}

    @cached_property
    def expected(self) -> ExpectedFailures:
        """The file of expected failures, read. Raises UsageError if it is invalid or names no kernel."""
        if self.expected_failures is None:
            return ExpectedFailures()
        own = [p.name for p in self.properties or () if not isinstance(p, str)]
        found = ExpectedFailures.from_file(self.expected_failures, own)
        for n, entry in enumerate(found.entries, start=1):
            if ":" in entry.target and (why := missing_target_reason(entry.target)):
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
    """A property, from its name or "module:NAME". Raises UsageError if there is none."""
    from packproof.properties.laws.catalogue import PROPERTIES  # noqa: PLC0415  (torch)
    from packproof.properties.laws.property import Property  # noqa: PLC0415

    if isinstance(given, Property):
        if PROPERTIES.get(given.name, given) is not given:
            raise UsageError(f"property: packproof has a property {given.name!r} of its own; give yours another name")
        return given
    if ":" not in given:
        return PROPERTIES[require_known("property", given, [*LAWS, COMPILE])]
    found = Location.parse(given).find()
    if not isinstance(found, Property):
        raise UsageError(f"property: {given!r} is of type {type(found).__name__}, expected a packproof.Property")
    return found


def check_names(request: CheckRequest) -> None:
    """Raises UsageError for an unknown device, dtype, property or profile, with the nearest known. Imports no torch."""
    require_known("device", request.device, DEVICES)
    require_known("profile", request.profile, PROFILES)
    for dtype in request.dtypes or ():
        require_known("dtype", dtype, SHORT_DTYPES)
    if request.max_time is not None and not request.max_time > 0:
        raise UsageError(f"max_time: {request.max_time} seconds; expected a number above zero, or None for no limit")
    for name in request.properties or ():
        if isinstance(name, str) and ":" not in name:
            require_known("property", name, [*LAWS, COMPILE])
    if request.sanitizer is not None:
        require_known("sanitizer", request.sanitizer, TOOLS)
    if request.compiled is not None and not Path(request.compiled).is_file():
        raise UsageError(f"compiled: {request.compiled} is no file; expected data/compiled.json of a clone, or nothing")
    _ = request.expected


def validate(request: CheckRequest) -> None:
    """Raises UsageError for an unknown name, or for a device or tool not available here."""
    import torch  # noqa: PLC0415  (takes a second; wrong names are reported first)

    from packproof.harness.compute_sanitizer.cell import require_sanitizer  # noqa: PLC0415  (torch)

    check_names(request)
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    if request.sanitizer is not None:
        require_sanitizer(request.device)
    _ = request.laws
