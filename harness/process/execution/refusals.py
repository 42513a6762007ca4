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

from packproof.base.errors import ArgumentError
from packproof.base.light_torch import DispatchMode
from packproof.harness.process.execution.provenance.arithmetic import DATA_MOVEMENT
from packproof.properties.calling import Call

_RESTRICTION = re.compile(
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
_PACKPROOF = Path(__file__).parents[3]
_HARNESS = tuple(
    f"{_PACKPROOF / folder}{os.sep}"
    for folder in ("harness", "interpreter", "models", "debug", "proof", "bench", "cli")
)
_FUNCTION_FOLDERS = tuple(
    f"{_PACKPROOF / folder}{os.sep}" for folder in ("base", "refs", "kernels", "layers", "packs", "parallel")
)
_ADAPTERS = f"{_PACKPROOF / 'adapters'}{os.sep}"
_RANKS_MODULE = f"{__name__.partition('.')[0]}.parallel.ranks"
# their errors are about how ranks talk to each other
_RANKS = tuple(str(_PACKPROOF / "parallel" / f"{name}.py") for name in ("ranks", "rank_apart", "simulated_group"))
_COLLECTIVES = ("c10d", "_c10d_functional")


def refuses(error: Exception, call: Call, repeat: Callable[["ComputationWatch"], None], *, backward: bool) -> bool:
    """Whether the exception declines the call.

    repeat: runs the call again under the watch and reports to it the launches invisible to a dispatch mode.
    """
    if is_contradiction(error):
        return False
    statement = raising_statement(error)
    if statement is None and not _is_from_extension(error):
        return False
    text = f"{error}\n{statement or ''}"
    if not (isinstance(error, NotImplementedError) or _RESTRICTION.search(text) or _names_argument(text, call)):
        return False
    watch = ComputationWatch()
    try:
        with watch:
            repeat(watch)
    except Exception as second_error:
        is_same = type(second_error) is type(error) and _text_without_addresses(
            second_error
        ) == _text_without_addresses(error)
        return is_same and (backward or not watch.has_computed)
    return False  # the repeated call succeeds


def is_contradiction(error: BaseException) -> bool:
    """Whether packproof's own functions were called with arguments that contradict each other."""
    frames = traceback.extract_tb(error.__traceback__)
    is_contradictory = isinstance(error, ArgumentError) and error.contradictory
    return is_contradictory and bool(frames) and holds_packproof_functions(frames[-1].filename)


def holds_packproof_functions(filename: str) -> bool:
    """Whether a file defines functions of packproof for kernels to call."""
    return filename.startswith(_FUNCTION_FOLDERS)


def is_raised_by_adapter(error: BaseException) -> bool:
    """Whether the code of packproof's adapters raised it."""
    files = _files_passed(error)
    return bool(files) and files[-1].startswith(_ADAPTERS)


def passed_kernel(error: BaseException) -> bool:
    """Whether the exception came through other code than that of packproof's adapters and of its harness."""
    return not all(file.startswith((_ADAPTERS, *_HARNESS)) for file in _files_passed(error))


def _files_passed(error: BaseException) -> list[str]:
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]


def _names_argument(text: str, call: Call) -> bool:
    """Whether the text names an argument of the call, of more than one letter."""
    return any(len(n) > 1 and re.search(rf"\b{re.escape(n)}\b", text) for n in (*call.inputs, *call.options))


def _text_without_addresses(error: BaseException) -> str:
    return _ADDRESS.sub("0x", str(error))


class _ThreadWatch(DispatchMode):
    """Watches one thread for computation: floating-point operators that do more than move data, and collectives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_computed = False

    def record_computation(self) -> None:
        self.has_computed = True

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.overloadpacket.__name__
        has_floats = any(isinstance(x, Tensor) and x.is_floating_point() for x in (*args, *(kwargs or {}).values()))
        is_aten = op.namespace == "aten"
        if op.namespace in _COLLECTIVES or (has_floats and is_aten and not (op.is_view or name in DATA_MOVEMENT)):
            self.has_computed = True
        result = op(*args, **(kwargs or {}))
        if has_floats and not is_aten:  # only after it returned: a custom operator checks its arguments inside
            self.has_computed = True
        return result


class ComputationWatch(_ThreadWatch):
    """Watches a call for computation: operators, collectives, launches.

    With simulated ranks the rank that raises decides: it may check its arguments first, whatever earlier ranks
    computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread_watches: dict[int, _ThreadWatch] = {}

    def __enter__(self) -> Self:
        self._switch_hooks("add")
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._switch_hooks("remove")

    def record_launch(self, *_: Any) -> None:
        self._thread_watches.get(threading.get_ident(), self).record_computation()

    def _switch_hooks(self, change: str) -> None:
        if triton := sys.modules.get("triton"):
            getattr(triton.knobs.runtime.launch_enter_hook, change)(self.record_launch)
        if ranks := sys.modules.get(_RANKS_MODULE):
            ranks.Ranks.watch = self._watch_ranks if change == "add" else None

    @contextlib.contextmanager
    def _watch_ranks(self) -> Iterator[Callable[[], Any]]:
        """Watch one run of simulated ranks. Yields a context manager for each rank to enter in its own thread."""
        rank_watches, failed_ranks = list[_ThreadWatch](), list[_ThreadWatch]()

        @contextlib.contextmanager
        def watch_rank() -> Iterator[Callable[[], None]]:
            rank_watches.append(rank := _ThreadWatch())
            self._thread_watches[threading.get_ident()] = rank
            try:
                with rank:
                    yield rank.record_computation
            except Exception:
                failed_ranks.append(rank)
                raise

        try:
            yield watch_rank
        finally:
            self.has_computed |= any(rank.has_computed for rank in failed_ranks[:1] or rank_watches)


def is_foreign_file(filename: str) -> bool:
    """Whether a file belongs to a library or to packproof rather than to the kernel."""
    is_stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
    return is_stdlib or filename.startswith((*_HARNESS, *_RANKS, "<", *_libraries()))


def _libraries() -> Iterator[str]:
    """The folders of imported libraries. A kernel's own folder may have such a name, as in mamba_ssm/ops/triton."""
    for name in _LIBRARIES:
        if file := getattr(sys.modules.get(name), "__file__", None):
            yield str(Path(file).parent) + os.sep


def raising_statement(error: BaseException) -> str | None:
    """The kernel's own raise or assert that an exception came from, with its conditions; None for any other origin.

    A statement in a helper comes with the line that called the helper.
    """
    frames = list(traceback.extract_tb(error.__traceback__))
    if not frames or is_foreign_file(frames[-1].filename):
        return None
    *callers, raising_frame = frames
    statement = _statement(raising_frame, error)
    if statement is None:
        return None
    if callers and not is_foreign_file(callers[-1].filename) and not _RESTRICTION.search(statement):
        statement += "\n" + (callers[-1].line or "")
    return statement


def is_raised_by_torch(error: BaseException) -> bool:
    """Whether an operator of torch raised it: no statement of Python's, as far as the source is known, and no compiled
    extension."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not linecache.getlines(frames[-1].filename):
        return False
    return _statement(frames[-1], error) is None and not _is_from_extension(error)


def _statement(frame: traceback.FrameSummary, error: BaseException) -> str | None:
    lines = linecache.getlines(frame.filename)
    if not lines or frame.lineno is None:
        return None
    source = "".join(lines)
    with contextlib.suppress(SyntaxError, ValueError):
        enclosing = [n for n in _statements(source) if _spans_line(n, frame.lineno)]
        innermost = max(enclosing, key=lambda n: (n.lineno, n.col_offset), default=None)
        if _raises(innermost, error):
            tests = [ast.unparse(n.test) for n in enclosing if isinstance(n, ast.If)]
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
    exception_node = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
    name = (
        exception_node.attr
        if isinstance(exception_node, ast.Attribute)
        else exception_node.id
        if isinstance(exception_node, ast.Name)
        else ""
    )
    return not name or not name[0].isupper() or name == type(error).__name__


def _spans_line(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _is_from_extension(error: BaseException) -> bool:
    """Whether a compiled extension of the kernel raised the error: a TORCH_CHECK in a function called from Python."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or is_foreign_file(trace.tb_frame.f_code.co_filename):
        return False
    scope = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    candidates = (scope.get(name) for name in re.findall(r"\b([A-Za-z_]\w*)\.", line))
    return any(isinstance(m, ModuleType) and str(getattr(m, "__file__", "")).endswith(".so") for m in candidates)
