"""One call of a kernel as a script: its tensors as literals, the import of the kernel, and the expected result."""

import base64
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.adapter import Adapter
from packproof.adapters.binding import Binding
from packproof.adapters.call_lines import SPREAD, CallLines
from packproof.base.errors import UsageError
from packproof.base.hub.repositories import PREFIX
from packproof.harness.process.naming import Location
from packproof.properties.calling import TensorKey
from packproof.properties.cases import Sample

_MOST_PRINTED = 96  # elements of a tensor that is written as numbers
_DIGITS = {torch.float32: 9, torch.float64: 17}  # by which a number is itself again; 16 bits need 5
_INTERPRETED = 'os.environ["TRITON_INTERPRET"] = "1"  # packproof repairs that interpreter: the error may differ\n'
_SEE_REPLAY = "; `packproof replay` runs it"
_UNPACK = '''def unpacked(text, dtype, *shape):
    """A tensor from its bytes."""
    data = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
'''


@dataclass(frozen=True)
class FailingCall:
    """A call, and its worst element."""

    sample: Sample
    """The tensors of the call."""
    title: str
    """How the call differs from that of the file; "" if it does not."""
    key: TensorKey | None = None
    """The tensor with the element; None for a call that ends in an error."""
    index: tuple[int, ...] = ()
    """The index of the element."""
    expected: float = 0.0
    """Its value by the float64 reference."""
    allowed: float = 0.0
    """Its error budget."""
    fault: str = ""
    """How the call ended; "" if it returned."""
    interpreted: bool = False
    """Whether Triton's interpreter ran it."""


def call_script(target: str, call: FailingCall, device: str, title: str) -> str:
    """The script. Raises UsageError for an adapter with a convention that is code.

    target: the name of the kernel.
    title: the op and the property.
    """
    location = Location.parse(target)
    function = location.load()
    if location.module.startswith("packproof.adapters") and not isinstance(function, Adapter):
        raise UsageError(f"{target} calls its kernel by a function of packproof, which is code{_SEE_REPLAY}")
    lines = (
        _adapted(target, function, call, device)
        if isinstance(function, Adapter)
        else _called(target, function, call, device)
    )
    how = f", {call.title}" if call.title else ""
    about = f"{title}: {target}{how}. It needs torch and the kernel alone."
    return _with_imports(about, call.interpreted, [*lines, *_result_lines(call)])


def _called(target: str, function: Callable[..., Any], call: FailingCall, device: str) -> Iterator[str]:
    """The call of a kernel that takes the op's arguments, and its outputs."""
    location, arguments = Location.parse(target), _arguments(call)
    by_position, by_name = Binding.from_function(function).kernel_arguments(
        arguments, lambda: call.sample.offsets[-1] + call.sample.slack
    )
    yield from (*_import_lines(location), "", *_tensor_lines(call, {**_names(by_position), **by_name}, device))
    positional = [name if isinstance(value, Tensor) else repr(value) for name, value in _names(by_position).items()]
    named = [f"{name}={name if isinstance(value, Tensor) else repr(value)}" for name, value in by_name.items()]
    yield f"{', '.join(call.sample.outputs)} = {location.qualname}({', '.join([*positional, *named])})"


def _adapted(target: str, adapter: Adapter, call: FailingCall, device: str) -> Iterator[str]:
    """The call of a kernel as its adapter makes it, and the op's outputs."""
    sample = call.sample
    axes = {name: len(sample.axes[name]) for name in sample.outputs}
    try:
        written = CallLines(adapter, _arguments(call), axes, _wrt(call), partial(_literal, device=device))
        location = _adapted_location(adapter)
        tensors = {name: sample.passed_inputs[name] for name in written.read_tensors()}
        yield from (*_import_lines(location), "", *_tensor_lines(call, tensors, device))
        yield from written.lines(location.qualname)
        yield from written.output_lines() if call.key is not None else ()
    except UsageError as error:
        raise UsageError(f"{target} is an adapter of {adapter.title}: {error}{_SEE_REPLAY}") from error


def _adapted_location(adapter: Adapter) -> Location:
    """Where the adapted kernel is. Raises UsageError for one that no name leads to."""
    target = adapter.target
    if not callable(target):
        is_file = target.module.endswith(".py")
        return Location("", target.module, target.qualname) if is_file else Location.parse(target.text)
    location = Location.from_function(target)
    if location is None:
        raise UsageError("no name leads to its kernel")
    by_module = "." in location.module
    return replace(location, file="") if by_module else replace(location, module="")


def _arguments(call: FailingCall) -> dict[str, Any]:
    return {**call.sample.passed_inputs, **call.sample.metadata, **call.sample.options}


def _with_imports(title: str, interpreted: bool, lines: Sequence[str]) -> str:
    """A script of these lines, below what they need."""
    text = "\n".join([*lines, ""])
    if re.search(r"\b(nan|inf)\b", text):
        text = f'nan, inf = float("nan"), float("inf")\n{text}'
    if "spread(" in text:
        text = f"\n\n{SPREAD}\n\n{text}"
    if "unpacked(" in text:
        text = f"\n\n{_UNPACK}\n\n{text}"
    named = "from torch.nn import functional\n" if "functional." in text else ""
    text = f"import torch\n{named}\n{text}"
    if interpreted:
        text = f"{_INTERPRETED}\n{text}"  # before the kernel imports triton
    modules = [f"import {module}" for module in ("base64", "os", "sys", "zlib") if f"{module}." in text]
    modules += ["from pathlib import Path"] if "Path(" in text else []
    return "\n".join([f'"""{title}"""', "", *modules, *([""] if modules else []), text])


def _import_lines(location: Location) -> tuple[str, ...]:
    """The lines after which the kernel has its dotted name."""
    name = location.qualname.partition(".")[0]
    if location.module.startswith(PREFIX):
        folder = location.module.removeprefix(PREFIX)
        return "from kernels import get_local_kernel", "", f"{name} = get_local_kernel(Path({folder!r})).{name}"
    if not location.file:
        return (f"from {location.module} import {name}",)
    file = Path(location.file)
    return f"sys.path.insert(0, {str(file.parent)!r})", f"from {file.stem} import {name}"


def _tensor_lines(call: FailingCall, arguments: Mapping[str, Any], device: str) -> Iterator[str]:
    """The arguments that are tensors, then the incoming gradients."""
    wrt = _wrt(call)
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            grad = ".requires_grad_()" if name in wrt else ""
            yield f"{name} = {_literal(value, device)}{grad}"
    if wrt:
        for name, x in call.sample.cotangents.items():
            yield f"d{name} = {_literal(x, device)}"


def _wrt(call: FailingCall) -> Sequence[str]:
    """The inputs by which the script differentiates."""
    return call.sample.wrt if call.key is not None and call.key.is_gradient else ()


def _names(by_position: Sequence[Any]) -> dict[str, Any]:
    return {f"argument_{i}": value for i, value in enumerate(by_position)}


def _literal(x: Tensor, device: str) -> str:
    where = f', device="{device}"' if device != "cpu" else ""
    if x.numel() <= _MOST_PRINTED:
        return f"torch.tensor({_numbers(x.tolist(), _DIGITS.get(x.dtype, 5))}, dtype={x.dtype}{where})"
    data = base64.b64encode(zlib.compress(x.contiguous().view(torch.uint8).numpy().tobytes(), 9)).decode()
    moved = f'.to("{device}")' if device != "cpu" else ""
    return f'unpacked("{data}", {x.dtype}, {", ".join(map(str, x.shape))}){moved}'


def _numbers(value: Any, digits: int) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_numbers(x, digits) for x in value)}]"
    return f"{value:.{digits}g}" if isinstance(value, float) else repr(value)


def _result_lines(call: FailingCall) -> Iterator[str]:
    """The element, and what it should be."""
    outputs = call.sample.outputs
    if call.key is None:
        yield f"# it ends here: {' '.join(call.fault.split())}"
        return
    result = str(call.key.name)
    if call.key.is_gradient:
        wanted = [name for name in outputs if name in call.sample.cotangents]
        incoming = ", ".join(f"d{name}" for name in wanted)
        yield f"({result}_grad,) = torch.autograd.grad([{', '.join(wanted)}], {result}, [{incoming}])"
        result = f"{result}_grad"
    where = f"{result}[{', '.join(map(str, call.index))}]" if call.index else result
    yield f"got = {where}.item()"
    yield f"expected, allowed = {call.expected!r}, {call.allowed!r}  # by the op in float64, and the derived budget"
    yield f'print(f"{where} is {{got}}, expected {{expected}} within {{allowed}}")'
    yield "raise SystemExit(not abs(got - expected) <= allowed)"
