"""The request of a check: every option, declared once for the command line, Python, pytest, the action and the docs.

A new option is a field here, and a parameter of `packproof.check`. `docs/options.py` writes its line in the docs.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packproof.adapters.registry import PEERS
from packproof.harness.results.events import Tier
from packproof.harness.results.expected import ExpectedFailures
from packproof.harness.results.names import (
    COMPILE,
    DEVICES,
    DURATION,
    SECONDS,
    SEED_NUMBER,
    SWITCH,
    TOOLS,
    Kind,
    ListKind,
    is_text,
    long_dtype,
    one_of,
    option,
    options_of,
    parse_names,
    require_known,
)
from packproof.harness.targets.location import Location, missing_target_reason
from packproof.properties.cases.domain import Domain
from packproof.properties.laws.names import LAWS
from packproof.properties.op import Op
from packproof.properties.promises import Promises
from packproof.refs.errors import UsageError
from packproof.refs.signatures import SIGNATURES

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


def _known_target(target: Any) -> Any:
    if isinstance(target, str) and target not in PEERS:
        Location.parse(target)
    return target


def _known_op(op: Any) -> Any:
    return op if isinstance(op, Op) or ":" in op else require_known("op", op, SIGNATURES)


def _is_property(value: Any) -> bool:
    if isinstance(value, str):
        return True
    from packproof.properties.laws.property import Property  # noqa: PLC0415  (torch)

    return isinstance(value, Property)


def _known_properties(properties: "tuple[str | Property, ...]") -> "tuple[str | Property, ...]":
    for name in properties:
        if isinstance(name, str) and ":" not in name:
            require_known("property", name, [*LAWS, COMPILE])
    return properties


def _are_conditions(value: Any) -> bool:
    texts = (value,) if isinstance(value, str) else value
    return isinstance(texts, Collection) and not isinstance(texts, Mapping) and all(map(is_text, texts))


def _existing_file(path: str) -> str:
    if not Path(path).is_file():
        raise UsageError(f"compiled: {path} is no file; expected data/compiled.json of a clone, or nothing")
    return path


_TARGET = Kind(
    "a function or its name, 'module:function'", lambda value: callable(value) or is_text(value), _known_target
)
_OP = Kind("the name of an op or a packproof.Op", lambda value: isinstance(value, str | Op), _known_op)
_DTYPES = ListKind(
    "a list of names: dtypes=['fp32', 'bf16']",
    is_text,
    lambda names: tuple(map(long_dtype, names)),
    text_type=list,
    parse=parse_names,
)
_PROPERTIES = ListKind(
    "a list of names: properties=['packing']", _is_property, _known_properties, text_type=list, parse=parse_names
)
_CONDITIONS = Kind(
    "conditions, such as domain=['d % 8 == 0']",
    _are_conditions,
    lambda texts: Domain.of(texts if isinstance(texts, str) else tuple(texts)).texts,
    text_type=list,
)
_PROMISES = Kind("a packproof.Promises", lambda value: isinstance(value, Promises))


@dataclass(frozen=True)
class CheckRequest:
    """Everything a user can ask of a check."""

    target: str | Callable[..., Any] | None = option(
        None,
        _TARGET,
        "package.module:function, path/file.py:function, or a peer as `packproof list` names it; without it, "
        "packproof's own kernels",
        user_default=MISSING,
    )
    """Named "package.module:function" or "path/file.py:function", or a function; None for packproof's own kernels."""
    op: str | Op | None = option(None, _OP, "the op that the target computes; see `packproof list`")
    """An op, its name, or "module:NAME" of a declared Op; None for the op declared by the target."""
    device: str = option(
        "cpu", one_of("device", DEVICES), "cpu or cuda  [default: cuda if available]", user_default=None
    )
    """Either "cpu" or "cuda"."""
    dtypes: tuple[str, ...] | None = option(None, _DTYPES, "fp64, fp32, bf16, fp16; comma-separated", "--dtype")
    """None for all dtypes of the kernel."""
    properties: "tuple[str | Property, ...] | None" = option(
        None, _PROPERTIES, "only these properties, or your own as module:NAME; comma-separated", "--property"
    )
    """Only these properties, each a Property, its name, or "module:NAME"; None for all of packproof's."""
    profile: str = option("standard", one_of("profile", PROFILES), "how many examples: quick, standard or thorough")
    """A name in PROFILES."""
    seed: int = option(0, SEED_NUMBER, "another seed draws other examples")
    """Seed of the drawn cases."""
    domain: tuple[str, ...] = option(
        (),
        _CONDITIONS,
        "what the kernel supports, such as 'k in (64, 128)', 'd % 8 == 0', 'tokens % 16 == 0', 'length > 0' "
        "or 'dtype == bf16'; separate several by ; or repeat  [default: declared, else inferred from its refusals]",
    )
    """Conditions on the supported calls, beside the declared ones."""
    strict: bool = option(False, SWITCH, "a property that does not hold fails the run even if it is not promised")
    """Whether unpromised properties count like the rest."""
    fail_fast: bool = option(False, SWITCH, "end the run at the first failure", "--exitfirst", "-x")
    """End the run at the first failure."""
    max_time: float | None = option(
        None,
        DURATION,
        "time that the run may take, such as 60s or 2m: the most telling cases come first, and what is not "
        "reached is inconclusive",
    )
    """Seconds for the run once the kernels are imported. Cells not reached by then are inconclusive."""
    timeout: float | None = option(None, SECONDS, "seconds that one kernel call may take", min=0.001, max=86_400)
    """Seconds for one call of the kernel."""
    forward_only: bool = option(False, SWITCH, "check no gradients")
    """Do not differentiate."""
    draw_configs: bool = option(
        False,
        SWITCH,
        "draw a configuration of an autotuned Triton kernel for each kind of call, without timing, and take "
        "the next one in each further case: faster on a GPU, and checks more configurations",
    )
    """Autotuned kernels get a drawn configuration for each kind of call, untimed. Otherwise they are timed on a GPU,
    and on a CPU each case has the next configuration.
    """
    sanitizer: str | None = option(
        None,
        one_of("sanitizer", TOOLS),
        "run the golden cases under compute-sanitizer, not the properties: memcheck, racecheck or initcheck",
    )
    """A tool of NVIDIA's compute-sanitizer to run over the golden cases, instead of the properties."""
    compiled: str | None = option(
        None,
        Kind("the path of a file", is_text, _existing_file),
        "what forms of packproof's own kernels took when they were compiled, such as data/compiled.json: only "
        "what has changed since is compiled, and a sample of the rest, which has to agree",
    )
    """A file with the GPU resources of packproof's own compiled kernels. Unchanged kernels are not compiled again,
    except a sample, which must agree with the file.
    """
    expected_failures: str | None = option(
        None,
        Kind("the path of a TOML file", is_text),
        "TOML file of known failures, by target, property and dtype: they do not fail the run; one that no "
        "longer occurs does, until its entry is removed",
        metavar="FILE",
    )
    """A file of expected failures. They do not fail the run, unless they stop failing."""
    promises: Promises | None = option(
        None, _PROMISES, "what the kernel's design guarantees, instead of its own declaration", in_command=False
    )
    """Instead of the declared ones."""
    questions: bool = option(
        True, SWITCH, "test the kernel for properties that it does not promise, too", in_command=False
    )
    """Whether the kernel is tested for properties it does not promise."""
    replay_dir: str = option(
        ".packproof", Kind("the path of a folder", is_text), "folder for replay files", in_command=False
    )
    """Folder for replay files."""

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


OPTIONS = options_of(CheckRequest)


def checked(values: Mapping[str, Any], caller: str = "") -> CheckRequest:
    """The request with these values of a user, by option; None as a default is left out. Imports no torch.

    caller: the prefix of errors about a value.

    Raises UsageError for a value of another type or out of range, an unknown name, or a file that is missing.
    """
    given = {name: value for name, value in values.items() if value is not None or OPTIONS[name].default is not None}
    request = CheckRequest(**{n: OPTIONS[n].kind.read(f"{caller}{n}", value) for n, value in given.items()})
    _ = request.expected
    return request


def validate(request: CheckRequest) -> None:
    """Raises UsageError for an invalid option, or for a device or tool not available here."""
    import torch  # noqa: PLC0415  (takes a second; wrong names are reported first)

    from packproof.harness.compute_sanitizer.cell import require_sanitizer  # noqa: PLC0415  (torch)

    checked({f.name: value for f in fields(request) if (value := getattr(request, f.name)) is not None})
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    if request.sanitizer is not None:
        require_sanitizer(request.device)
    _ = request.laws
