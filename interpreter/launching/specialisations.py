"""The key of each launch of a Triton kernel, as text: another text is another compilation or another tuning.

On a GPU it is the key of Triton's own cache. On a CPU nothing is compiled: the key is worked out from the arguments, by
Triton's rules.
"""

# mypy: allow-untyped-calls

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch

from packproof.base.names import TARGET_PREFIX
from packproof.interpreter.in_use import is_interpreting

Record = Callable[[Literal["compiles", "tunes"], str, str], None]
"""Called with the kind of work, the name of a kernel, and the key of its compilation or tuning."""
_DIVISOR = 16  # Triton compiles another kernel for integers and addresses that it divides
_INT32 = range(-(2**31), 2**31)
_LEFT_ALONE = ("do_not_specialize", "do_not_specialize_on_alignment")  # options of triton.jit: names or numbers


@contextmanager
def watch_specialisations(
    record: Record,
    during_launch: Callable[[], AbstractContextManager[None]] = nullcontext,
    outside_launch: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[None]:
    """Call `record` at each launch of a Triton kernel inside.

    during_launch: entered while the interpreter runs a launch.
    outside_launch: entered again while the kernel's own code works out the grid of that launch.
    """
    with ExitStack() as patches:
        if "triton" in sys.modules:
            from packproof.interpreter.patch import temporary_replacement  # noqa: PLC0415  (needs triton)

            def patch(owner: Any, name: str, watched: Callable[..., Any]) -> None:
                patches.enter_context(temporary_replacement(owner, name, watched))

            if is_interpreting():
                from triton.runtime.interpreter import InterpretedFunction  # noqa: PLC0415

                patch(InterpretedFunction, "run", _interpreted(record, during_launch, outside_launch))
            else:
                from triton.runtime.jit import JITFunction  # noqa: PLC0415

                patch(JITFunction, "run", _compiled(record))
            from triton.runtime.autotuner import Autotuner  # noqa: PLC0415

            patch(Autotuner, "run", _tuned(record))
        yield


def _interpreted(
    record: Record,
    during_launch: Callable[[], AbstractContextManager[None]],
    outside_launch: Callable[[], AbstractContextManager[None]],
) -> Callable[..., Any]:
    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_record(function: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
            record("compiles", _name(function.fn), _key(function, args, kwargs))

            def own_grid(arguments: Mapping[str, Any]) -> Any:
                with outside_launch():
                    return grid(arguments)

            with during_launch():
                return run(function, *args, grid=own_grid if callable(grid) else grid, **kwargs)

        return run_and_record

    return watched


def _compiled(record: Record) -> Callable[..., Any]:
    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_record(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            device = torch.cuda.current_device()
            _, specialisation, options = function.device_caches[device][-1](*args, **kwargs)
            names = [parameter.name for parameter in function.params]
            texts = [f"{n}={_plain(value)}" for n, value in zip(names, specialisation, strict=False)]
            record("compiles", _name(function.fn), ", ".join([*texts, *_option_texts(options)]))
            return run(function, *args, grid=grid, warmup=warmup, **kwargs)

        return run_and_record

    return watched


def _tuned(record: Record) -> Callable[..., Any]:
    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_record(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            if len(tuner.configs) > 1:
                arguments = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
                texts = [f"{name}={arguments[name]}" for name in tuner.keys if name in arguments]
                dtypes = [str(x.dtype) for n, x in arguments.items() if n in tuner.arg_names and hasattr(x, "dtype")]
                record("tunes", _name(tuner.base_fn), ", ".join([*texts, *dtypes]))
            return run(tuner, *args, **kwargs)

        return run_and_record

    return watched


def _key(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The arguments of an interpreted launch, as Triton tells compilations apart."""
    parameters = inspect.signature(function.fn).parameters
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    arguments = {**defaults, **dict(zip(function.arg_names, args, strict=False))}
    arguments |= {n: value for n, value in kwargs.items() if n in parameters}
    unspecialised, unaligned = (_parameter_names(function, option) for option in _LEFT_ALONE)
    texts = []
    for name, value in ((n, arguments[n]) for n in parameters if n in arguments):
        if "constexpr" in str(parameters[name].annotation):
            text = _plain(value)
        else:
            text = _argument_text(value, specialised=name not in unspecialised, aligned=name not in unaligned)
        texts.append(f"{name}={text}")
    options = {n: value for n, value in kwargs.items() if n not in parameters and n != "warmup"}
    return ", ".join([*texts, *_option_texts(options)])


def _argument_text(value: Any, *, specialised: bool, aligned: bool) -> str:
    """One argument in the key of a compilation: not the value of a number, but its type, 1, and multiples of 16."""
    if hasattr(value, "data_ptr"):
        return f"{value.dtype}{_alignment(value.data_ptr(), specialised and aligned)}"
    if isinstance(value, tuple | list):
        return f"({' '.join(_argument_text(item, specialised=specialised, aligned=aligned) for item in value)})"
    if type(value) is int:
        if value == 1 and specialised:
            return "1"
        kind = "i32" if value in _INT32 else "i64"
        return kind + _alignment(value, specialised and aligned)
    if isinstance(value, bool | float):
        return type(value).__name__
    return _plain(value)


def _alignment(number: int, counts: bool) -> str:
    return f" divisible by {_DIVISOR}" if counts and number % _DIVISOR == 0 else ""


def _parameter_names(function: Any, option: str) -> set[str]:
    listed = function.kwargs.get(option) or ()
    return {function.arg_names[entry] if isinstance(entry, int) else entry for entry in listed}


def _option_texts(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]


def _plain(value: Any) -> str:
    """A value without its address in memory, and without a comma: it separates the parts of a key."""
    if isinstance(value, tuple | list):
        return " ".join(map(_plain, value))
    name = getattr(value, "__qualname__", None) or getattr(getattr(value, "fn", None), "__qualname__", None)
    return str(name or value).replace(", ", " ")


def _name(function: Any) -> str:
    return f"{function.__module__.removeprefix(TARGET_PREFIX)}.{function.__name__}"
