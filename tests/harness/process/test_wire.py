"""Frames: what goes in comes out bit for bit, in pieces of any size, and nothing else comes out."""

import struct

import pytest
import torch

from packproof.base.errors import KernelFault, PackproofError, UsageError
from packproof.base.tuned import Tuned
from packproof.harness.process.wire import (
    Decoder,
    Frame,
    WireError,
    call_frame,
    decode_answer,
    decode_call,
    encode,
    refusal_frame,
    result_frame,
)
from packproof.interpreter.memory_guard import POISON, fill_poison, is_poison
from packproof.properties.calling.call import Call, Refusal, Result


def through(frame: Frame, piece: int = 1 << 20) -> Frame:
    decoder = Decoder()
    data = encode(frame)
    for start in range(0, len(data), piece):
        assert decoder.take() is None
        decoder.feed(data[start : start + piece])
    result = decoder.take()
    assert result is not None
    assert decoder.empty
    return result


def test_a_call_arrives_as_it_was_sent() -> None:
    x = torch.randn(6, 3, dtype=torch.float64)
    call = Call(
        inputs={"x": x.t(), "weight": torch.ones(1).expand(4), "b": torch.empty(0, 2, dtype=torch.bfloat16)},
        cu_seqlens=torch.tensor([0, 2, 6]),
        options={"window_size": (-1, 3), "activation": None, "scale": 0.5, "flag": True},
        outputs=("y", "final_states"),
        wrt=("x",),
        cotangents={"y": torch.randn(3, 6)},
        placement={"x": "transposed", "cotangent:y": "sliced"},
        guard=True,
        edit_metadata=True,
    )
    got = decode_call(through(call_frame(call, 7), piece=13))
    assert (got.options, got.outputs, got.wrt, got.placement) == (call.options, call.outputs, call.wrt, call.placement)
    assert (got.guard, got.edit_metadata) == (True, True)
    assert list(got.inputs) == ["x", "weight", "b"]
    for name, tensor in {**call.inputs, **call.cotangents}.items():
        other = {**got.inputs, **got.cotangents}[name]
        assert torch.equal(other, tensor)
        assert other.dtype == tensor.dtype
    assert got.cu_seqlens.dtype == torch.int64


@pytest.mark.parametrize("dtype", [d for d in POISON if d.is_floating_point])
def test_nan_payloads_survive(dtype: torch.dtype) -> None:
    y = torch.zeros(5, dtype=dtype)
    fill_poison(y[2:])
    result = decode_answer(
        through(result_frame(Result({"y": y}, {"x": y}, {"x": y}, interpreted=True, operators=2), 1))
    )
    assert result.interpreted
    assert result.operators == 2
    for tensors in (result.outputs, result.gradients, result.inputs_after):
        (tensor,) = tensors.values()
        assert is_poison(tensor).tolist() == [False, False, True, True, True]


def test_a_tensor_may_be_two_outputs() -> None:
    y = torch.randn(3)
    result = decode_answer(through(result_frame(Result({"a": y, "b": y[1:]}, {}), 1)))
    assert torch.equal(result.outputs["b"], y[1:])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.ones(3).expand(4, 3),
        torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj(),
        torch.imag(torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj()),
        torch._efficientzerotensor(3),
        torch.empty(0, 3, dtype=torch.bfloat16),
        torch.tensor(2.5, dtype=torch.float16, requires_grad=True),
        torch.tensor([True, False]),
    ],
    ids=["transposed", "expanded", "conjugate", "negative", "zero", "empty", "scalar", "bool"],
)
def test_whatever_its_memory_a_tensor_arrives_as_its_values(tensor: torch.Tensor) -> None:
    decoder = Decoder()
    decoder.feed(encode(Frame("result", tensors={"odd": torch.ones(1, dtype=torch.int8), "y": tensor})))
    frame = decoder.take()
    assert frame is not None
    arrived = frame.tensors["y"]
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert arrived.tolist() == tensor.detach().clone().tolist()


def test_refusals_are_raised_again() -> None:
    with pytest.raises(KernelFault, match="wrote past") as fault:
        decode_answer(through(refusal_frame(KernelFault("memory", "wrote past the end of y"), 1)))
    assert fault.value.kind == "memory"
    with pytest.raises(Refusal, match="no fp16"):
        decode_answer(through(refusal_frame(Refusal("no fp16"), 1)))
    with pytest.raises(PackproofError, match="failed by itself:\nTraceback"):
        decode_answer(through(Frame("broken", 1, {"text": "Traceback"})))


@pytest.mark.parametrize(
    "data",
    [
        b"a",
        b"all is well, the answer is y = 4",
        b"pkpf" + struct.pack("<IQ", 1 << 31, 0),
        b"pkpf" + struct.pack("<IQ", 2, 1 << 63),
        b"pkpf" + struct.pack("<IQ", 2, 0) + b"{}",
        b"pkpf" + struct.pack("<IQ", 2, 3) + b"{}abc",
        encode(Frame("result", 1, {}, {"output/y": torch.ones(3)})).replace(b'"kind"', b'"king"'),
        encode(Frame("result", 1, {}, {"output/y": torch.ones(3)})).replace(b'"F32"', b'"F64"'),
        encode(Frame("result", 1, {}, {"output/y": torch.ones(3)})).replace(b'["output/y"]', b'["output/z"]'),
    ],
)
def test_garbage_is_a_wire_error(data: bytes) -> None:
    decoder = Decoder()
    decoder.feed(data)
    with pytest.raises(WireError):
        decoder.take()


@pytest.mark.parametrize(
    "frame", [Frame("ready"), Frame("fault", 1, {"fault": "funny", "text": ""}), Frame("fault", 1)]
)
def test_a_frame_that_is_not_an_answer_is_a_wire_error(frame: Frame) -> None:
    with pytest.raises(WireError, match="not an answer"):
        decode_answer(frame)


def test_an_option_that_is_not_a_json_value_is_refused() -> None:
    call = Call({}, torch.tensor([0]), {"dtype": torch.float32}, ("y",))
    with pytest.raises(UsageError, match=r"option dtype is torch.float32; expected None, a bool"):
        call_frame(call, 1)


def test_the_configurations_of_autotuned_kernels_cross_whole_or_not_at_all() -> None:
    tuned = (Tuned("kernel", ("B=16",), ("B=16", "B=32"), 3),)
    frame = result_frame(Result({}, {}, tuned=tuned), 1)
    assert decode_answer(through(frame)).tuned == tuned
    for damaged in (3, [["kernel", "B=16", [], 1]], [["kernel", ["B=16"], [1], 1]], [["kernel"]]):
        with pytest.raises(WireError, match="the configurations of autotuned kernels do not fit"):
            decode_answer(through(Frame("result", 1, {**frame.body, "tuned": damaged})))
