"""How a call and its result cross the process boundary: a length-prefixed frame of JSON and safetensors, never pickle.

    frame = magic | uint32 bytes of JSON | uint64 bytes of safetensors | JSON | safetensors      (little-endian)

If a kernel could reach the channel, the magic is a secret of the two ends: no one else can write the start of a frame.
Tensors arrive bit for bit (NaN payloads included) and contiguous; tuples among the options stay tuples.

A reader assumes nothing about the writer. Data that is too large or does not decode is a WireError, before it is kept.
Text arrives without control characters: they could repaint a terminal.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from packproof.base.errors import FaultKind, KernelFault, PackproofError, UsageError
from packproof.base.provenance.computed import Computed, Computer, Pass
from packproof.base.provenance.host_work import HostWork, WorkKind
from packproof.base.records import RecordError, from_json
from packproof.base.tuned import Tuned
from packproof.base.wording import printable
from packproof.properties.calling import (
    Call,
    FailedCompilation,
    MachineLimit,
    MissingModule,
    Mode,
    OutsideDomain,
    Placement,
    Refusal,
    Result,
)

_MAGIC = b"pkpf"
_SIZES = struct.Struct("<IQ")
_MAX_JSON = 1 << 24
_MAX_COMPUTED = 256  # launches and operators of one call
MAX_TENSORS = 1 << 40  # bytes
READ_BYTES = 1 << 16  # bytes of one read: for a larger buffer, malloc maps new memory each time


class InternalWorkerError(PackproofError):
    """packproof's own code failed in the process that ran the kernel."""


class WireError(PackproofError):
    """Bytes that are not a frame, or a frame with invalid content."""


@dataclass(frozen=True)
class Frame:
    """One message."""

    kind: str
    """Such as "call" or "result"."""
    number: int = 0
    """The call it belongs to."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors by name, on the CPU."""


def encode(frame: Frame, magic: bytes = _MAGIC) -> bytes:
    """The bytes of a frame."""
    names = list(frame.tensors)
    text = json.dumps({"kind": frame.kind, "number": frame.number, "names": names, "body": frame.body}).encode()
    # safetensors rejects views and tensors that share memory
    contiguous = {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in frame.tensors.items()}
    payload = safetensors.torch.save(contiguous) if contiguous else b""
    return magic + _SIZES.pack(len(text), len(payload)) + text + payload


class Decoder:
    """Collects bytes in pieces of any size and returns whole frames.

    `max_tensors`: the bytes of a frame's tensors, at most. A frame that announces more is refused.
    """

    def __init__(self, magic: bytes = _MAGIC) -> None:
        self._magic = magic
        self._bytes = bytearray()
        self.max_tensors = MAX_TENSORS

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._bytes += data

    def take(self) -> Frame | None:
        """The next whole frame, or None if it is not complete. Raises WireError if the bytes cannot be a frame."""
        if not self._bytes.startswith(self._magic[: len(self._bytes)]):
            raise WireError(f"{bytes(self._bytes[:16])!r} is not the start of a frame")
        start = len(self._magic) + _SIZES.size
        if len(self._bytes) < start:
            return None
        n_text, n_payload = _SIZES.unpack_from(self._bytes, len(self._magic))
        if n_text > _MAX_JSON or n_payload > self.max_tensors:
            raise WireError(f"a frame of {n_text} + {n_payload} bytes is too large")
        end = start + n_text + n_payload
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as view:
            text = bytes(view[start : start + n_text])
            payload = bytes(view[start + n_text : end])
        del self._bytes[:end]
        return _decode_frame(text, payload)

    @property
    def empty(self) -> bool:
        """Whether no byte is left over."""
        return not self._bytes


def _decode_frame(text: bytes, payload: bytes) -> Frame:
    try:
        header = json.loads(text)
        tensors = safetensors.torch.load(payload) if payload else {}
        return Frame(
            str(header["kind"]),
            int(header["number"]),
            {str(key): _clean_value(value) for key, value in header["body"].items()},
            {str(name): tensors[name] for name in header["names"]},
        )
    # RuntimeError covers RecursionError: JSON nested too deeply
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        raise WireError(f"a frame does not decode: {type(error).__name__}: {str(error)[:200]}") from error


def _clean_value(value: Any) -> Any:
    """Lists as tuples, and text without control characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return tuple(_clean_value(item) for item in value)
    if isinstance(value, dict):
        return {printable(key): _clean_value(item) for key, item in value.items()}
    return value


def call_frame(call: Call, number: int) -> Frame:
    """The frame that requests a call. Raises UsageError if an option is not a JSON value."""
    for name, value in call.options.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise UsageError(
                f"option {name} is {value!r}; expected None, a bool, a number, a string or a tuple of these"
            ) from error
    body = {
        "options": dict(call.options),
        "outputs": call.outputs,
        "wrt": call.wrt,
        "placement": dict(call.placement),
        "guard": call.guard,
        "edit_metadata": call.edit_metadata,
        "same_tensors": call.same_tensors,
        "mode": call.mode,
        "copies": call.copies,
        "repeats": call.repeats,
        "shared": call.shared,
        "history": call.history,
        "token_rows": call.token_rows,
        "convention": call.convention,
        "configuration": call.configuration,
        "reference": call.reference,
    }
    tensors = {**call.metadata, **_with_prefix("input", call.inputs), **_with_prefix("cotangent", call.cotangents)}
    return Frame("call", number, body, tensors)


def decode_call(frame: Frame) -> Call:
    """The call requested by a frame."""
    body = frame.body
    return Call(
        inputs=_without_prefix("input", frame.tensors),
        cu_seqlens=frame.tensors["cu_seqlens"],
        options=body["options"],
        outputs=body["outputs"],
        wrt=body["wrt"],
        cotangents=_without_prefix("cotangent", frame.tensors),
        placement=cast("dict[str, Placement]", body["placement"]),
        guard=body["guard"],
        edit_metadata=body["edit_metadata"],
        same_tensors=body["same_tensors"],
        mode=cast("Mode", body["mode"]),
        copies=body["copies"],
        repeats=body["repeats"],
        shared=body["shared"],
        history=body["history"],
        token_rows=body["token_rows"],
        convention=body["convention"],
        configuration=body["configuration"],
        reference=body["reference"],
        cu_seqlens_k=frame.tensors.get("cu_seqlens_k"),
    )


def result_frame(result: Result, number: int) -> Frame:
    """The frame that carries a result."""
    tensors = {
        **_with_prefix("output", result.outputs),
        **_with_prefix("gradient", result.gradients),
        **_with_prefix("after", result.inputs_after),
        **_with_prefix("at return", result.inputs_at_return),
        **_with_prefix("output after", result.outputs_after),
        **_with_prefix("outlier", {name: rows for name, (_, rows) in result.outliers.items()}),
    }
    copies = {name: copy for name, (copy, _) in result.outliers.items()}
    tuned = [[kernel.kernel, kernel.ran, kernel.offered, kernel.declared] for kernel in result.tuned]
    computed = [[item.kind, item.name, item.during, item.is_own, item.line] for item in result.computed]
    body = {
        "interpreted": result.interpreted,
        "operators": result.operators,
        "copies": copies,
        "tuned": tuned,
        "computed": computed,
        "host_work": [[work.kind, work.name, work.key, work.line] for work in result.host_work],
        "live_bytes": result.live_bytes,
        "perturbed_calls": result.perturbed_calls,
        "different_calls": result.different_calls,
    }
    return Frame("result", number, body, tensors)


_LIMITS = {
    "machine": MachineLimit,
    "domain": OutsideDomain,
    "compiler": FailedCompilation,
    "module": MissingModule,
}  # limits other than the kernel's own refusal


def refusal_frame(error: KernelFault | Refusal, number: int) -> Frame:
    """The frame that reports a fault or a refusal."""
    if isinstance(error, Refusal):
        limit = next((name for name, kind in _LIMITS.items() if isinstance(error, kind)), "")
        return Frame("refused", number, {"text": str(error), "limit": limit, "backward": error.backward})
    return Frame("fault", number, {"fault": error.kind, "text": str(error)})


def decode_answer(frame: Frame, outputs: tuple[str, ...] = ()) -> Result:
    """The result carried by a frame.

    outputs: the names it must have.

    Raises the frame's KernelFault or Refusal; OwnFault if the worker's own code failed; WireError for any other frame.
    """
    text = str(frame.body.get("text", ""))
    if frame.kind == "result":
        if missing := set(outputs) - _without_prefix("output", frame.tensors).keys():
            raise WireError(f"a result without {', '.join(sorted(missing))}")
        return Result(
            outputs=_without_prefix("output", frame.tensors),
            gradients=_without_prefix("gradient", frame.tensors),
            inputs_after=_without_prefix("after", frame.tensors),
            inputs_at_return=_without_prefix("at return", frame.tensors),
            outputs_after=_without_prefix("output after", frame.tensors),
            interpreted=frame.body.get("interpreted") is True,
            operators=_int_or_zero(frame.body.get("operators")),
            outliers=_outliers(frame),
            tuned=_tuned(frame),
            computed=_computed(frame),
            host_work=_host_work(frame),
            live_bytes=_int_or_zero(frame.body.get("live_bytes")),
            perturbed_calls=_int_or_zero(frame.body.get("perturbed_calls")),
            different_calls=_int_or_zero(frame.body.get("different_calls")),
        )
    if frame.kind == "refused":
        if kind := _LIMITS.get(str(frame.body.get("limit"))):
            raise kind(text)
        raise Refusal(text, backward=frame.body.get("backward") is True)
    if frame.kind == "fault" and frame.body.get("fault") in get_args(FaultKind):
        raise KernelFault(frame.body["fault"], text)
    if frame.kind == "broken":
        raise InternalWorkerError(f"the worker process failed by itself:\n{text}")
    raise WireError(f"a frame of kind {frame.kind!r} is not an answer to a call")


def _outliers(frame: Frame) -> dict[str, tuple[int, Tensor]]:
    copies = frame.body.get("copies")
    numbers = copies if isinstance(copies, dict) else {}
    return {
        name: (_int_or_zero(numbers.get(name)), rows)
        for name, rows in _without_prefix("outlier", frame.tensors).items()
    }


def _tuned(frame: Frame) -> tuple[Tuned, ...]:
    rows = frame.body.get("tuned", ())
    try:
        return tuple(Tuned(*from_json(tuple[str, tuple[str, ...], tuple[str, ...], int], fields)) for fields in rows)
    except (RecordError, TypeError) as error:
        raise WireError(f"the configurations of autotuned kernels do not fit: {error}") from error


def _computed(frame: Frame) -> tuple[Computed, ...]:
    try:
        rows = frame.body.get("computed", ())[:_MAX_COMPUTED]
        return tuple(Computed(*from_json(tuple[Computer, str, Pass, bool, str], fields)) for fields in rows)
    except (RecordError, TypeError) as error:
        raise WireError(f"the record of who computed does not fit: {error}") from error


def _host_work(frame: Frame) -> tuple[HostWork, ...]:
    try:
        rows = frame.body.get("host_work", ())[:_MAX_COMPUTED]
        return tuple(HostWork(*from_json(tuple[WorkKind, str, str, str], fields)) for fields in rows)
    except (RecordError, TypeError) as error:
        raise WireError(f"the record of what the host did does not fit: {error}") from error


def _int_or_zero(value: Any) -> int:
    return value if type(value) is int else 0


def _with_prefix(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}


def _without_prefix(group: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{group}/"): t for name, t in tensors.items() if name.startswith(f"{group}/")}
