"""Whether an exception is a refusal: the kernel's own check of its arguments, made before it computed anything.

All of these must hold: the kernel's own code raises or asserts; it had launched, computed or exchanged nothing before;
the same call raises the same error again; and the text or the condition names a thing kernels may restrict, such as
shapes, dtypes, layouts or options.

In a backward pass it is a refusal to differentiate, whatever autograd computed before. If packproof's own functions
find arguments that contradict each other, it is no refusal: the kernel made these arguments, since a checked call never
has such.
"""

import ast
import contextlib
import linecache
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from torch import Tensor

from packproof.properties.call import Call
from packproof.properties.light_torch import DispatchMode
from packproof.refs.errors import ArgumentError

_SPEAKS_OF = re.compile(
    r"shape|\bsizes?\b|\bndim|\bdims?\b|dimension|\brank\b|stride|contiguous|layout|dtype|\bfloat|half\b"
    r"|bf16|fp16|fp32|fp64|int32|int64|precision|head|channel|hidden|feature|width|window|group|state|chunk|block"
    r"|\brows?\b|tokens?\b|length|\blen\b|seq|batch|pack|varlen|empty|slack|padded|padding|multiple|divisible"
    r"|power of (2|two)|at (most|least)|maximum|minimum|too (long|large|short|small|many|few)|not support|unsupported"
    r"|only support|supports only|not implemented|requires?_grad|gradient|backward|differentia|\bis (not )?None\b"
    r"|numel|% *\d|\brequired\b",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_LIBRARIES = ("torch", "triton", "numpy", "einops")
_HARNESS = str(Path(__file__).parents[1]) + os.sep
_PACKPROOF = Path(__file__).parents[2]
_CHECKING = tuple(f"{_PACKPROOF / folder}{os.sep}" for folder in ("refs", "kernels", "layers", "packs", "parallel"))
_RANKS_MODULE = f"{__name__.partition('.')[0]}.parallel.ranks"
_RANKS = str(_PACKPROOF / "parallel/ranks.py")  # its errors are about how ranks talk to each other
_COLLECTIVES = ("c10d", "_c10d_functional")
# operators that only move values, create tensors, or inspect their shape
_MOVES = frozenset(
    (  # noqa: SIM905
        "clone copy_ _to_copy contiguous cat stack constant_pad_nd index index_put index_put_ _unsafe_index gather "
        "index_select zero_ fill_ zeros_like empty_like ones_like full_like new_empty new_zeros new_ones new_full "
        "new_empty_strided empty_strided detach detach_ set_ resize_ slice_backward select_backward lift_fresh "
        "split_with_sizes_copy repeat where masked_fill slice_scatter select_scatter"
    ).split()
)


def refuses(error: Exception, call: Call, again: Callable[["Computing"], None], *, backward: bool) -> bool:
    """Whether the exception declines the call.

    repeat: runs the call again under the watch and reports to it the launches invisible to a dispatch mode.
    """
    if contradicts_itself(error):
        return False
    statement = own_statement(error)
    if statement is None and not _from_extension(error):
        return False
    text = f"{error}\n{statement or ''}"
    if not (isinstance(error, NotImplementedError) or _SPEAKS_OF.search(text) or _names(text, call)):
        return False
    watch = Computing()
    try:
        with watch:
            again(watch)
    except Exception as second:
        same = type(second) is type(error) and _plain(second) == _plain(error)
        return same and (backward or not watch.computed)
    return False  # the repeated call succeeds


def contradicts_itself(error: BaseException) -> bool:
    """Whether packproof's own functions were called with arguments that contradict each other."""
    frames = traceback.extract_tb(error.__traceback__)
    contradictory = isinstance(error, ArgumentError) and error.contradictory
    return contradictory and bool(frames) and checks_arguments(frames[-1].filename)


def checks_arguments(filename: str) -> bool:
    """Whether a file defines functions of packproof for kernels to call."""
    return filename.startswith(_CHECKING)


def _names(text: str, call: Call) -> bool:
    """Whether the text names an argument of the call, of more than one letter."""
    return any(len(n) > 1 and re.search(rf"\b{re.escape(n)}\b", text) for n in (*call.inputs, *call.options))


def _plain(error: BaseException) -> str:
    return _ADDRESS.sub("0x", str(error))


class _ThreadComputing(DispatchMode):
    """Watches one thread for computation: floating-point operators that do more than move data, and collectives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computed = False

    def computes(self) -> None:
        self.computed = True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.overloadpacket.__name__
        floating = any(isinstance(x, Tensor) and x.is_floating_point() for x in (*args, *(kwargs or {}).values()))
        torchs = op.namespace == "aten"
        if op.namespace in _COLLECTIVES or (floating and torchs and not (op.is_view or name in _MOVES)):
            self.computed = True
        result = op(*args, **(kwargs or {}))
        if floating and not torchs:  # only after it returned: a custom operator checks its arguments inside
            self.computed = True
        return result


class Computing(_ThreadComputing):
    """Watches a call for computation: operators, collectives, launches.

    With simulated ranks the rank that raises decides: it may check its arguments first, whatever earlier ranks
    computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_thread: dict[int, _ThreadComputing] = {}

    def __enter__(self) -> Self:
        self._hooks("add")
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hooks("remove")

    def launched(self, *_: Any) -> None:
        self._of_thread.get(threading.get_ident(), self).computes()

    def _hooks(self, change: str) -> None:
        if triton := sys.modules.get("triton"):
            getattr(triton.knobs.runtime.launch_enter_hook, change)(self.launched)
        if ranks := sys.modules.get(_RANKS_MODULE):
            ranks.Ranks.watch = self._over_ranks if change == "add" else None

    @contextlib.contextmanager
    def _over_ranks(self) -> Iterator[Callable[[], Any]]:
        """Watch one run of simulated ranks. Yields a context manager for each rank to enter in its own thread."""
        ranks, failed = list[_ThreadComputing](), list[_ThreadComputing]()

        @contextlib.contextmanager
        def over_rank() -> Iterator[Callable[[], None]]:
            ranks.append(rank := _ThreadComputing())
            self._of_thread[threading.get_ident()] = rank
            try:
                with rank:
                    yield rank.computes
            except Exception:
                failed.append(rank)
                raise

        try:
            yield over_rank
        finally:
            self.computed |= any(rank.computed for rank in failed[:1] or ranks)


def foreign(filename: str) -> bool:
    """Whether a file belongs to a library or to packproof rather than to the kernel."""
    stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
    return stdlib or filename.startswith((_HARNESS, _RANKS, "<", *_libraries()))


def _libraries() -> Iterator[str]:
    """The folders of imported libraries. A kernel's own folder may have such a name, as in mamba_ssm/ops/triton."""
    for name in _LIBRARIES:
        if file := getattr(sys.modules.get(name), "__file__", None):
            yield str(Path(file).parent) + os.sep


def own_statement(error: BaseException) -> str | None:
    """The kernel's own raise or assert that an exception came from, with its conditions; None for any other origin.

    A statement in a helper comes with the line that called the helper.
    """
    frames = list(traceback.extract_tb(error.__traceback__))
    if not frames or foreign(frames[-1].filename):
        return None
    *outer, last = frames
    found = _statement(last, error)
    if found is None:
        return None
    if outer and not foreign(outer[-1].filename) and not _SPEAKS_OF.search(found):
        found += "\n" + (outer[-1].line or "")
    return found


def _statement(frame: traceback.FrameSummary, error: BaseException) -> str | None:
    lines = linecache.getlines(frame.filename)
    if not lines or frame.lineno is None:
        return None
    source = "".join(lines)
    with contextlib.suppress(SyntaxError, ValueError):
        around = [n for n in _statements(source) if _spans(n, frame.lineno)]
        innermost = max(around, key=lambda n: (n.lineno, n.col_offset), default=None)
        if _raises(innermost, error):
            tests = [ast.unparse(n.test) for n in around if isinstance(n, ast.If)]
            assert innermost is not None
            return "\n".join([ast.unparse(innermost), *tests[-2:]])
    return None


@lru_cache(maxsize=8)  # a search for a domain meets hundreds of refusals in one file
def _statements(source: str) -> tuple[ast.stmt, ...]:
    return tuple(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt))


def _raises(statement: ast.stmt | None, error: BaseException) -> bool:
    """Whether the statement raises or asserts, and the error did not come from evaluating its condition."""
    if isinstance(statement, ast.Assert):
        return isinstance(error, AssertionError)
    if not isinstance(statement, ast.Raise):
        return False
    made = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
    name = made.attr if isinstance(made, ast.Attribute) else made.id if isinstance(made, ast.Name) else ""
    return not name or not name[0].isupper() or name == type(error).__name__


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _from_extension(error: BaseException) -> bool:
    """Whether a compiled extension of the kernel raised the error: a TORCH_CHECK in a function called from Python."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or foreign(trace.tb_frame.f_code.co_filename):
        return False
    scope = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    named = (scope.get(name) for name in re.findall(r"\b([A-Za-z_]\w*)\.", line))
    return any(isinstance(m, ModuleType) and str(getattr(m, "__file__", "")).endswith(".so") for m in named)
