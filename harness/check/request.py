"""The request of a check: every option, declared once for the command line, Python, pytest, the action and the docs.

A new option is a field here, and a parameter of `packproof.check`. `docs/options.py` writes its line in the docs.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packproof.adapters.peers import PEERS
from packproof.base.errors import UsageError
from packproof.base.law_names import LAWS, ON_REQUEST
from packproof.base.names import (
    COMPILE,
    DEVICES,
    DURATION,
    SECONDS,
    SEED_NUMBER,
    SWITCH,
    TOOLS,
    Kind,
    ListKind,
    RequestOption,
    choice,
    is_dtype_like,
    is_text,
    long_dtype,
    option,
    parse_names,
    require_known,
)
from packproof.base.signatures import SIGNATURES
from packproof.harness.check.expected import ExpectedFailures
from packproof.harness.process.naming import Location, canonical_target, missing_target_reason
from packproof.harness.report import Tier
from packproof.properties.cases import Domain
from packproof.properties.contracts import ContractFile
from packproof.properties.declarations import Promises
from packproof.properties.ops import Op
from packproof.properties.thresholds import Reach

if TYPE_CHECKING:
    from packproof.properties.laws import Property

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
    reach: Reach
    """How far cases go past thresholds."""


PROFILES: Mapping[str, Profile] = {
    "quick": Profile({"interpret": 0, "eager": 0, "gpu": 0}, Allowance(150, 10), Reach(4096, 0, 0, 1.0, 2.0)),
    "standard": Profile(
        {"interpret": 2, "eager": 50, "gpu": 100}, Allowance(400, 30), Reach(65_536, 8192, 4096, 0.6, 2.0)
    ),
    "thorough": Profile(
        {"interpret": 100, "eager": 1000, "gpu": 2000}, Allowance(2000, 120), Reach(131_072, 131_072, 65_536, 1.2, 30.0)
    ),
}


def _known_op(op: Any) -> Any:
    return op if isinstance(op, Op) or ":" in op else require_known("op", op, SIGNATURES, "packproof list")


def _is_property(value: Any) -> bool:
    if isinstance(value, str):
        return True
    from packproof.properties.laws import Property  # noqa: PLC0415  (torch)

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
    "a function or its name, 'module:function'",
    lambda value: callable(value) or is_text(value),
    lambda value: canonical_target(value) if is_text(value) else value,
)
_OP = Kind("the name of an op or a packproof.Op", lambda value: isinstance(value, str | Op), _known_op)
_DTYPES = ListKind(
    "a list of names: dtypes=['fp32', 'bf16']",
    is_dtype_like,
    lambda dtypes: tuple(long_dtype(str(dtype)) for dtype in dtypes),
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
_CONTRACT = Kind(
    "the path of a JSON file",
    lambda value: isinstance(value, str | ContractFile),
    lambda value: ContractFile.read(value) if isinstance(value, str) else value,  # once, before a kernel can write it
)


@dataclass(frozen=True)
class CheckRequest:
    """Everything a user can ask of a check. A field has the text for users, and below it what else a reader needs."""

    target: str | Callable[..., Any] | None = option(
        None,
        _TARGET,
        "target",
        "package.module:function, path/file.py:function, hub:owner/kernel:function for one in the cache of the Hugging "
        "Face kernel hub, or a peer as `packproof list` names it; without it, "
        "packproof's own kernels",
        user_default=MISSING,
    )
    """A function, or its name as `Location.parse` reads it; None for packproof's own kernels."""
    op: str | Op | None = option(None, _OP, "--op", "the op that the target computes; see `packproof list`")
    """An op, its name, or "module:NAME" of a declared Op; None for the op declared by the target."""
    device: str = option(
        "cpu", choice("device", DEVICES), "--device", "cpu or cuda  [default: cuda if available]", user_default=None
    )
    dtypes: tuple[str, ...] | None = option(None, _DTYPES, "--dtype", "fp64, fp32, bf16, fp16; comma-separated")
    """None for all dtypes of the kernel."""
    properties: "tuple[str | Property, ...] | None" = option(
        None, _PROPERTIES, "--property", "only these properties, or your own as module:NAME; comma-separated"
    )
    """Only these properties, each a Property, its name, or "module:NAME"; None for all of packproof's."""
    profile: str = option(
        "standard", choice("profile", PROFILES), "--profile", "how many examples: quick, standard or thorough"
    )
    seed: int = option(0, SEED_NUMBER, "--seed", "another seed draws other examples")
    domain: tuple[str, ...] = option(
        (),
        _CONDITIONS,
        "--domain",
        "what the kernel supports, such as 'k in (64, 128)', 'd % 8 == 0', 'tokens % 16 == 0', 'length > 0' "
        "or 'dtype == bf16'; separate several by ; or repeat  [default: declared, else inferred from its refusals]",
    )
    """Conditions on the supported calls, beside the declared ones."""
    contract: ContractFile | None = option(
        None,
        _CONTRACT,
        "--contract",
        "JSON file that fixes op, domain, gradients, dtypes, promises and the least profile, as `packproof contract` "
        "writes it: a declaration of the kernel that loosens it is a failure, and so is a call that it refuses",
        metavar="FILE",
    )
    """Given as the path of the file."""
    strict: bool = option(
        False, SWITCH, "--strict", "a property that does not hold fails the run even if it is not promised"
    )
    fail_fast: bool = option(False, SWITCH, "--exitfirst -x", "end the run at the first failure")
    max_time: float | None = option(
        None,
        DURATION,
        "--max-time",
        "time that the run may take, such as 60s or 2m: the most telling cases come first, and what is not "
        "reached is inconclusive",
    )
    """Seconds for the run once the kernels are imported. Cells not reached by then are inconclusive."""
    timeout: float | None = option(
        None, SECONDS, "--timeout", "seconds that one kernel call may take", min=0.001, max=86_400
    )
    forward_only: bool = option(False, SWITCH, "--forward-only", "check no gradients")
    only_own_kernels: bool = option(
        False,
        SWITCH,
        "--only-own-kernels",
        "nothing but the kernel's own launches may compute: a call of a library or of a reference fails, as does a "
        "value or gradient that stays the same without them",
    )
    draw_configs: bool = option(
        False,
        SWITCH,
        "--draw-configs",
        "draw a configuration of an autotuned kernel for each kind of call, without timing, and take "
        "the next one in each further case: faster on a GPU, and checks more configurations",
    )
    """Autotuned kernels get a drawn configuration for each kind of call, untimed. Otherwise they are timed on a GPU,
    and on a CPU each case has the next configuration.
    """
    every_configuration: bool = option(
        False,
        SWITCH,
        "--every-configuration",
        "judge each configuration of an autotuned kernel, untimed, by the property reference at the most "
        "telling layouts: one that was not judged makes the cell inconclusive",
    )
    sanitizer: str | None = option(
        None,
        choice("sanitizer", TOOLS),
        "--sanitizer",
        "run the golden cases under compute-sanitizer, not the properties: memcheck, racecheck or initcheck",
    )
    compiled: str | None = option(
        None,
        Kind("the path of a file", is_text, _existing_file),
        "--compiled",
        "what forms of packproof's own kernels took when they were compiled, such as data/compiled.json: only "
        "what has changed since is compiled, and a sample of the rest, which has to agree",
    )
    expected_failures: str | None = option(
        None,
        Kind("the path of a TOML file", is_text),
        "--expected-failures",
        "TOML file of known failures, by target, property and dtype: they do not fail the run; one that no "
        "longer occurs does, until its entry is removed. Also of calls and properties in quarantine: these are not "
        "launched",
        metavar="FILE",
    )
    promises: Promises | None = option(
        None, _PROMISES, "", "what the kernel's design guarantees, instead of its own declaration"
    )
    questions: bool = option(True, SWITCH, "", "test the kernel for properties that it does not promise, too")
    least_examples: int = option(
        0,
        Kind("a whole number", lambda value: type(value) is int and value >= 0),
        "",
        "random examples after the golden ones, if the profile has fewer",
    )
    replay_dir: str = option(".packproof", Kind("the path of a folder", is_text), "", "folder for replay files")

    @cached_property
    def laws(self) -> "Mapping[str, Property]":
        """The properties by their names in cells and replay files, without the compile tier."""
        properties = [p for p in self.properties or LAWS if p != COMPILE and (self.properties or p not in ON_REQUEST)]
        return {p if isinstance(p, str) else p.name: resolve_property(p) for p in properties}

    @cached_property
    def expected(self) -> ExpectedFailures:
        """The file of expected failures, read. Raises UsageError if it is invalid or names no kernel."""
        if self.expected_failures is None:
            return ExpectedFailures()
        user_properties = [p.name for p in self.properties or () if not isinstance(p, str)]
        failures = ExpectedFailures.from_file(self.expected_failures, user_properties)
        for kind, targets in failures.targets.items():
            for n, target in enumerate(targets, start=1):
                if ":" in target and (reason := missing_target_reason(target)):
                    raise UsageError(f"expected failures: {failures.file}, {kind} {n}: {reason}")
        return failures

    def under_contract(self, file: ContractFile) -> "CheckRequest":
        """The request as the contract fixes it. Its options may ask for less, which is reported, and for nothing else.

        Raises UsageError for an option that the contract has another value of.
        """
        contract, label = file.contract, f"the contract {file.path}"
        if self.op not in (None, contract.op):
            raise UsageError(f"op: {label} fixes {contract.op}; leave op out")
        if self.promises is not None:
            raise UsageError(f"promises: {label} fixes them; leave promises out")
        if self.expected_failures is not None:
            raise UsageError(f"expected_failures: {label} allows no failure; leave one of both out")
        dtypes = tuple(map(long_dtype, contract.dtypes))
        if other_dtypes := set(self.dtypes or ()) - set(dtypes):
            raise UsageError(f"dtypes: {label} has {', '.join(dtypes)}, and not {', '.join(sorted(other_dtypes))}")
        profile = max(self.profile, contract.profile, key=list(PROFILES).index)
        only_own = self.only_own_kernels or contract.own_kernels_only
        return replace(self, op=contract.op, dtypes=self.dtypes or dtypes, profile=profile, only_own_kernels=only_own)

    @property
    def chooses_configurations(self) -> bool:
        """Whether autotuned kernels time nothing on a GPU either."""
        return self.draw_configs or self.every_configuration

    @property
    def compiles(self) -> bool:
        """Whether the compile tier takes part."""
        return not self.properties or COMPILE in self.properties

    @property
    def time_limit(self) -> float:
        """Seconds for one call of the kernel."""
        return self.timeout or TIME_LIMITS[self.device]


def resolve_property(law: "str | Property") -> "Property":
    """A property, from its name or "module:NAME". Raises UsageError if there is none."""
    from packproof.properties.laws import PROPERTIES, Property  # noqa: PLC0415  (torch)

    if isinstance(law, Property):
        if PROPERTIES.get(law.name, law) is not law:
            raise UsageError(f"property: packproof has a property {law.name!r} of its own; give yours another name")
        return law
    if ":" not in law:
        return PROPERTIES[require_known("property", law, [*LAWS, COMPILE])]
    value = Location.parse(law).find()
    if not isinstance(value, Property):
        raise UsageError(f"property: {law!r} is of type {type(value).__name__}, expected a packproof.Property")
    return value


OPTIONS: Mapping[str, RequestOption] = {f.name: f.metadata["option"] for f in fields(CheckRequest)}


def checked(values: Mapping[str, Any], caller: str = "") -> CheckRequest:
    """The request with these values of a user, by option; None as a default is left out. Imports no torch.

    caller: the prefix of errors about a value.

    Raises UsageError for a value of another type or out of range, an unknown name, or a missing file.
    """
    request = CheckRequest(
        **{
            name: OPTIONS[name].kind.checked_value(f"{caller}{name}", value)
            for name, value in values.items()
            if value is not None or OPTIONS[name].default is not None
        }
    )
    if request.contract is not None:
        request = request.under_contract(request.contract)
    if isinstance(request.target, str) and request.target not in PEERS:  # names first, then files
        Location.parse(request.target)
    _ = request.expected
    return request


def value_from_text(name: str, text: Any, label: str) -> Any:
    """The value of an option, from text on a command line or in a file. Raises UsageError, with this label.

    text: a list of texts for an option that may be repeated, a number where the command line has read it.
    """
    parse = OPTIONS[name].kind.parse
    return parse(text, label) if parse and isinstance(text, str | list) else text


def validate(request: CheckRequest) -> None:
    """Raises UsageError for an invalid option, or for a device or tool not available here."""
    import torch  # noqa: PLC0415  (takes a second; wrong names are reported first)

    from packproof.harness.tiers.compute_sanitizer import require_sanitizer  # noqa: PLC0415  (torch)

    checked({f.name: value for f in fields(request) if (value := getattr(request, f.name)) is not None})
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    if request.sanitizer is not None:
        require_sanitizer(request.device)
    _ = request.laws
