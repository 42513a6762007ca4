"""From a request to the cells that will run: kernels, properties, dtypes, profiles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from packproof.harness.compute_sanitizer.cell import require_sanitizer
from packproof.harness.compute_sanitizer.findings import TOOLS
from packproof.harness.engine.shrink import Allowance
from packproof.harness.results.events import Cell, Tier
from packproof.harness.results.names import known
from packproof.harness.results.questions import open_questions
from packproof.harness.results.text import printable
from packproof.harness.targets.location import Location
from packproof.properties.catalogue import PROPERTIES
from packproof.properties.declaration import Declaration, brought_op
from packproof.properties.op import Op
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.properties.sample import DTYPES
from packproof.refs.errors import UsageError

DEVICES = ("cpu", "cuda")
COMPILE = "compile"


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
    domain: conditions on the calls that the kernel supports, beside those declared. promises: instead of declared ones.
    asks: whether it is asked what it does not promise; strict: whether that counts like the rest.
    timeout: seconds that one call of the kernel may take. forward_only: do not differentiate.
    draw_configs: kernels that tune themselves get drawn configurations, untimed, on a GPU; on a CPU they have the first
    one. sanitizer: a tool of NVIDIA's compute-sanitizer, which looks at the golden cases instead of the properties.
    """

    target: str | Callable[..., Any] | None = None
    op: str | Op | None = None
    device: str = "cpu"
    dtypes: tuple[str, ...] | None = None
    properties: tuple[str, ...] | None = None
    profile: str = "standard"
    seed: int = 0
    timeout: float | None = None
    forward_only: bool = False
    promises: Promises | None = None
    domain: tuple[str, ...] = ()
    strict: bool = False
    asks: bool = True
    replay_dir: str = ".packproof"
    sanitizer: str | None = None
    draw_configs: bool = False


def check_names(request: CheckRequest) -> None:
    """UsageError for a device, dtype, property or profile that does not exist, with the nearest that does."""
    known("device", request.device, DEVICES)
    known("profile", request.profile, PROFILES)
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device: torch {torch.__version__} sees no CUDA device here; use --device cpu")
    for dtype in request.dtypes or ():
        known("dtype", dtype, DTYPES)
    if request.sanitizer is not None:
        known("sanitizer", request.sanitizer, TOOLS)
        require_sanitizer(request.device)
    for name in request.properties or ():
        known("property", name, [*PROPERTIES, COMPILE])


def resolve_op(op: str | Op | None, declared: Declaration, target: str) -> Op:
    """The op that a target is checked as."""
    wanted = op if op is not None else declared.op
    if isinstance(wanted, Op):
        return wanted
    if not wanted:
        raise UsageError(f"{target}: which op is it? Name one: {', '.join(OPS)}, or module:NAME of an Op of your own")
    if ":" in wanted:
        return _import_op(wanted)
    known("op", wanted, OPS)
    return OPS[wanted]


def _import_op(name: str) -> Op:
    """An Op that a user declares, from "package.module:NAME" or "path/file.py:NAME", or that of a kernel there."""
    found = Location.parse(name).find()
    op = found if isinstance(found, Op) else brought_op(found)
    if op is None:
        raise UsageError(
            f"op: {name!r} is a {type(found).__name__}, expected a packproof.Op, or a kernel declared with one"
        )
    return op


def plan_cells(
    request: CheckRequest, op: Op, declared: Declaration, target: str, *, compiled: bool, beyond: str = ""
) -> list[Cell]:
    """The cells of one kernel: the compile tier first, where there is one, then each property at each dtype."""
    name = printable(op.name)
    dtypes = request.dtypes or declared.dtypes
    if request.sanitizer is not None:
        return [Cell(name, target, request.sanitizer, dtype, request.device) for dtype in dtypes]
    laws = request.properties or tuple(PROPERTIES)
    cells = []
    if compiled and (request.properties is None or COMPILE in request.properties):
        cells.append(Cell(name, target, COMPILE, "all", request.device))
    cells += [
        Cell(name, target, law, dtype, request.device, beyond, counts=not beyond)
        for law in laws
        if law != COMPILE
        for dtype in dtypes
    ]
    if request.asks and not beyond:
        asked = [q for q, _ in open_questions(declared) if q.property in laws]
        cells += [
            Cell(name, target, q.property, dtype, request.device, q.word, counts=request.strict)
            for q in asked
            for dtype in dtypes
        ]
    return cells
